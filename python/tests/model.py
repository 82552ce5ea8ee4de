"""A small model whose attention is ours, and the steps that tests take with it."""

import torch
from torch import nn

from armillary import masks

VOCABULARY, TOKENS, BATCH = 11, 24, 4


class Layer(nn.Module):
    """A layer of a transformer with two query heads to a KV head."""

    def __init__(self, sp, width=16, heads=4):
        super().__init__()
        self.sp, self.heads = sp, heads
        self.norm = nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 2 * width)
        self.out = nn.Linear(width, width)

    def forward(self, x, mask=None):
        dim = x.shape[-1] // self.heads
        q, k, v = self.qkv(self.norm(x)).unflatten(-1, (-1, dim)).split([self.heads, 2, 2], 2)
        return x + self.out(self.sp.attention(q, k, v, mask=mask).flatten(2))


class Model(nn.Module):
    """Embeddings of tokens and positions, layers, logits. `wrap` runs a layer."""

    def __init__(self, sp, layers=2, wrap=None):
        super().__init__()
        torch.manual_seed(1)
        self.tokens = nn.Embedding(VOCABULARY, 16)
        self.positions = nn.Embedding(TOKENS, 16)
        self.layers = nn.ModuleList(Layer(sp) for _ in range(layers))
        self.head = nn.Linear(16, VOCABULARY)
        self.wrap = wrap or (lambda layer, x, mask: layer(x, mask))

    def forward(self, input_ids, positions, mask=None):
        x = self.tokens(input_ids) + self.positions(positions)
        for layer in self.layers:
            x = self.wrap(layer, x, mask)
        return self.head(x)


def batch_of_documents():
    """Whole sequences of three packed documents, the same for every rank."""
    generator = torch.Generator().manual_seed(2)
    ids = torch.randint(0, VOCABULARY, (BATCH, TOKENS), generator=generator)
    lengths = [5, 12, 7]
    documents = torch.repeat_interleave(torch.arange(3), torch.tensor(lengths)).expand(BATCH, TOKENS)
    return {"input_ids": ids, "labels": ids.clone(), "document_ids": documents}, masks.documents(lengths)


def steps(model, sp, optimizer, rows=slice(None), count=2, reduce="mean"):
    """Losses of some steps on these rows of the batch."""
    whole, _ = batch_of_documents()
    losses = []
    for _ in range(count):
        batch = sp.shard(**{name: tensor[rows] for name, tensor in whole.items()})
        loss = sp.loss(
            model(batch["input_ids"], batch["positions"], batch.mask), batch["labels"], reduce=reduce
        )
        loss.backward()
        losses.append(loss.detach())
        optimizer.step()
        optimizer.zero_grad()
    return losses
