"""The sequence-parallel attention that can be installed from pip, made to run on CPUs: as documented none
of it does.

PyTorch's context parallel does not shard the flash kernel of CPUs; its ring engine runs once that kernel
is handed in. yunchang asks for a CUDA kernel; it runs forward once PyTorch's for CPUs is put in its place.
It has no backward then."""

import torch
import torch.distributed as dist

from bench.peers.gloo_plain import flash, flash_backward


def context_parallel(rotation, group=None):
    """PyTorch's ring engine; `rotation` is "alltoall" (a ring) or "allgather". Its load balance is zigzag.
    `group`: of the ranks that share a sequence; None: all."""
    from torch.distributed.tensor.experimental._context_parallel import _attention as engine

    engine.set_rotate_method(rotation)
    group = group or dist.group.WORLD

    def forward(q, k, v, is_causal, **_):
        return flash(q, k, v, 0.0, is_causal)

    def backward(is_causal, grad_out, **arguments):
        saved = (arguments[name] for name in ("query", "key", "value", "out", "logsumexp"))
        return flash_backward(grad_out, *saved, 0.0, is_causal)

    class Attention(torch.autograd.Function):
        @staticmethod
        def forward(ctx, q, k, v):
            out, lse = engine._templated_ring_attention(group, 2, forward, q, k, v, is_causal=True)
            ctx.save_for_backward(q, k, v, out, lse)
            return out

        @staticmethod
        def backward(ctx, dout):
            grads = engine._templated_ring_attention_backward(
                group,
                2,
                backward,
                dout.contiguous(),
                "grad_out",
                *ctx.saved_tensors,
                is_causal=True,
            )
            return grads[:3]

    return Attention.apply


def yunchang(ring, ulysses_degree):
    """yunchang's hybrid attention; `ring` is "basic_pytorch" or "zigzag". Takes [1, tokens, H, D]."""
    import yunchang as library
    from yunchang.kernels import AttnType, attention

    attention._scaled_dot_product_flash_attention = flash
    world = dist.get_world_size()
    library.set_seq_parallel_pg(ulysses_degree, world // ulysses_degree, dist.get_rank(), world)
    layer = library.LongContextAttention(ring_impl_type=ring, attn_type=AttnType.TORCH_FLASH)

    def attend(q, k, v):
        return layer(*(x.transpose(1, 2).contiguous() for x in (q, k, v)), causal=True).transpose(1, 2)

    return attend
