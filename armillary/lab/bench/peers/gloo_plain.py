"""Causal zigzag ring attention and Ulysses on torch.distributed, written plainly on PyTorch's flash kernel
for CPUs, as an engineer does without a library. Shards are [1, H, tokens, D]."""

import torch
import torch.distributed as dist
from torch.nn import functional

flash = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
flash_backward = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward


def pass_on(tensors):
    """Sends to the next rank and receives from the one before. Returns the tensors that come, and a function
    that waits for them."""
    rank, world = dist.get_rank(), dist.get_world_size()
    tensors = [tensor.contiguous() for tensor in tensors]  # gradients of the flash kernel are not
    coming = [torch.empty_like(tensor) for tensor in tensors]
    requests = []
    for tensor, place in zip(tensors, coming, strict=True):
        requests.append(dist.isend(tensor, (rank + 1) % world))
        requests.append(dist.irecv(place, (rank - 1) % world))

    def wait():
        for request in requests:
            request.wait()

    return coming, wait


def merge(out, lse, part_out, part_lse):
    """Merges a partial over other keys into (out, lse), in place."""
    both = torch.logaddexp(lse, part_lse)
    out.mul_((lse - both).exp_().unsqueeze(-1)).addcmul_(part_out, (part_lse - both).exp_().unsqueeze(-1))
    lse.copy_(both)


class ZigzagRing(torch.autograd.Function):
    """A rank holds pieces r and 2P-1-r. Keys of an earlier rank: all queries see the first piece, none the
    second. Keys of a later rank: the second half of the queries sees all, the first half none."""

    @staticmethod
    def forward(ctx, q, k, v):
        rank, world = dist.get_rank(), dist.get_world_size()
        half = q.size(2) // 2
        keys = [k, v]
        out = lse = None
        for hop in range(world):
            if hop + 1 < world:
                coming, wait = pass_on(keys)
            if hop == 0:
                out, lse = flash(q, *keys, 0.0, True)
                out, lse = out.float(), lse.float().contiguous()
            elif hop <= rank:
                merge(out, lse, *flash(q, *(x[:, :, :half] for x in keys)))
            else:
                merge(out[:, :, half:], lse[:, :, half:], *flash(q[:, :, half:], *keys))
            if hop + 1 < world:
                wait()
                keys = coming
        out = out.to(q.dtype)
        ctx.save_for_backward(q, k, v, out, lse)
        return out

    @staticmethod
    def backward(ctx, dout):
        q, k, v, out, lse = ctx.saved_tensors
        rank, world = dist.get_rank(), dist.get_world_size()
        half = q.size(2) // 2
        keys, sums, wait_sums = [k, v], None, None
        dq = torch.zeros(q.shape)
        for hop in range(world):
            if hop + 1 < world:
                coming, wait = pass_on(keys)
            if hop == 0:
                part_dq, *part = flash_backward(dout, q, *keys, out, lse, 0.0, True)
                dq += part_dq
                sums = [x.float() for x in part]
            else:
                if hop <= rank:
                    halves = [x[:, :, :half] for x in keys]
                    part_dq, *part = flash_backward(dout, q, *halves, out, lse, 0.0, False)
                    dq += part_dq
                else:
                    rows = [x[:, :, half:] for x in (dout, q, out)]
                    late = lse[:, :, half:].contiguous()
                    part_dq, *part = flash_backward(rows[0], rows[1], *keys, rows[2], late, 0.0, False)
                    dq[:, :, half:] += part_dq
                wait_sums()  # the sums of these keys, from the rank before
                for total, mine in zip(sums, part, strict=True):
                    total[:, :, : mine.size(2)] += mine
            sums, wait_sums = pass_on(sums)
            if hop + 1 < world:
                wait()
                keys = coming
        wait_sums()
        return dq.to(q.dtype), sums[0].to(k.dtype), sums[1].to(v.dtype)


class Exchange(torch.autograd.Function):
    """[1, H, N/P, D] to [1, H/P, N, D], heads for tokens, or back; its gradient is the other way."""

    @staticmethod
    def forward(ctx, x, to_heads):
        ctx.to_heads = to_heads
        world = dist.get_world_size()
        _, heads, tokens, dim = x.shape
        if to_heads:
            outgoing = x.reshape(world, heads // world, tokens, dim).contiguous()
        else:
            outgoing = x.reshape(heads, world, tokens // world, dim).transpose(0, 1).contiguous()
        got = torch.empty_like(outgoing)
        dist.all_to_all_single(got, outgoing)
        if to_heads:
            return got.transpose(0, 1).reshape(1, heads // world, world * tokens, dim)
        return got.reshape(1, heads * world, tokens // world, dim)

    @staticmethod
    def backward(ctx, grad):
        return Exchange.apply(grad, not ctx.to_heads), None


def ulysses(q, k, v):
    q, k, v = (Exchange.apply(x, True) for x in (q, k, v))
    return Exchange.apply(functional.scaled_dot_product_attention(q, k, v, is_causal=True), False)
