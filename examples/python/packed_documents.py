"""Fine-tunes a model on packed documents: each attends to itself only, wherever its tokens lie.

torchrun --nproc-per-node 2 examples/python/packed_documents.py
"""

import torch
import torch.distributed as dist
import transformers
from torch.nn.parallel import DistributedDataParallel

import armillary
from armillary import hf

DOCUMENTS = ["Rings within rings. ", "A plan is data; ", "it is proved, and then it runs. ", "Nothing else. "]
TOKENS = 128


def pack(documents, tokens):
    """One row of tokens, its labels, and the document of each token; no document predicts the next one."""
    pieces = [torch.tensor(list(one.encode())) for one in documents * 8]
    input_ids = torch.cat(pieces)[:tokens]
    ids = torch.cat([torch.full((len(one),), at) for at, one in enumerate(pieces)])[:tokens]
    labels = input_ids.clone()
    labels[1:][ids[1:] != ids[:-1]] = -100  # the first token of a document is not the end of the last one
    return {"input_ids": input_ids[None], "labels": labels[None], "document_ids": ids[None]}


def main():
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    shape = {"vocab_size": 256, "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16}
    config = transformers.MistralConfig(**shape, **heads, sliding_window=24)
    model = transformers.MistralForCausalLM(config)  # or .from_pretrained(..)
    sp = armillary.SequenceParallel()
    batch = pack(DOCUMENTS, TOKENS)
    report = armillary.check(model, batch, sp)  # loss, gradients, outputs, leaks: against one device
    if sp.rank == 0:
        print(report)

    hf.install(model, sp, check=False)  # it was compared above
    model = DistributedDataParallel(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    for step in range(5):
        loss = model(**hf.shard(sp, **batch)).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if sp.rank == 0:
            print(f"step {step}  loss {loss.item():.4f}")
    armillary.leave_groups()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
