"""Trains a small Llama of transformers on one long sequence that is spread over all ranks.

torchrun --nproc-per-node 2 examples/python/llama_torchrun.py
"""

import torch
import torch.distributed as dist
import transformers
from torch.nn.parallel import DistributedDataParallel

import armillary
from armillary import hf

TOKENS = 512


def main():
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    torch.manual_seed(0)  # the same weights on all ranks
    model = transformers.LlamaForCausalLM(
        transformers.LlamaConfig(
            vocab_size=256,
            hidden_size=64,
            intermediate_size=128,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=2,
        )
    )
    sp = armillary.SequenceParallel(strategy="auto:traffic", layout="zigzag")
    hf.install(model, sp)
    model = DistributedDataParallel(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)

    with open(__file__, "rb") as source:
        text = (source.read() * 2)[:TOKENS]
    input_ids = torch.tensor(list(text)).unsqueeze(0)  # the whole sequence, on all ranks
    for step in range(5):
        batch = hf.shard(sp, input_ids=input_ids, labels=input_ids)
        loss = model(**batch).loss  # of the whole sequence, on all ranks
        loss.backward()  # DDP takes the mean of gradients over ranks
        optimizer.step()
        optimizer.zero_grad()
        if sp.rank == 0:
            print(f"step {step}  {batch['input_ids'].shape[1]} of {TOKENS} tokens  loss {loss.item():.4f}")
    armillary.leave_groups()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
