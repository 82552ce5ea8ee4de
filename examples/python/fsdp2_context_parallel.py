"""Two replicas of the data, each of whose sequences lies on two ranks, with parameters sharded over all four.

torchrun --nproc-per-node 4 examples/python/fsdp2_context_parallel.py
"""

import torch
import torch.distributed as dist
import transformers
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

import armillary
from armillary import hf

TOKENS = 256


def main():
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    replicas = dist.get_world_size() // 2
    mesh = init_device_mesh("cpu", (replicas, 2), mesh_dim_names=("dp", "cp"))
    torch.manual_seed(0)
    shape = {"vocab_size": 256, "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2}
    config = transformers.Qwen3Config(**shape, num_attention_heads=4, num_key_value_heads=2, head_dim=16)
    model = transformers.Qwen3ForCausalLM(config)

    sp = armillary.SequenceParallel(mesh["cp"])
    hf.install(model, sp)
    everyone = mesh["dp", "cp"]._flatten("dp_cp")  # gradients are averaged over both axes
    for layer in model.model.layers:
        fully_shard(layer, mesh=everyone)
    fully_shard(model, mesh=everyone)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)

    replica = mesh["dp"].get_local_rank()
    with open(__file__, "rb") as source:
        text = source.read()[replica * TOKENS : (replica + 1) * TOKENS]
    input_ids = torch.tensor(list(text)).unsqueeze(0)  # of this replica, on both of its ranks
    for step in range(5):
        loss = model(**hf.shard(sp, input_ids=input_ids, labels=input_ids)).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if dist.get_rank() == 0:
            print(f"step {step}  loss of replica 0 {loss.item():.4f}")
    armillary.leave_groups()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
