"""A float64 reference of the attention-free DDPM U-Net, computed from its state dict alone.

It follows the paper (Ho et al. 2020) and the parameter names of the published checkpoints, and
shares no code with the module under test.
"""

import math

import torch
from torch.nn.functional import conv2d, embedding, group_norm, linear, softmax


def eps(state, x, t, labels=None, *, multipliers, blocks, groups=32):
    """eps(x_t, t), float64 (B, C, H, W)."""
    w = {name: value.double() for name, value in state.items()} | {"groups": groups}
    x = x.double()
    width = w["head.weight"].shape[0]

    # Interleaved sin and cos of t / 10000^(2i / width).
    sinusoids = torch.empty(len(t), width, dtype=torch.float64)
    for i in range(width // 2):
        angle = t.double() / 10000 ** (2 * i / width)
        sinusoids[:, 2 * i], sinusoids[:, 2 * i + 1] = angle.sin(), angle.cos()
    time = "time_embedding.timembedding"
    features = linear(sinusoids, w[f"{time}.1.weight"], w[f"{time}.1.bias"])
    features = linear(swish(features), w[f"{time}.3.weight"], w[f"{time}.3.bias"])
    if labels is not None:
        features = features + embedding(labels, w["class_embedding.weight"])

    h = conv(w, "head", x, padding=1)
    skips, index = [h], 0
    for level in range(len(multipliers)):
        for _ in range(blocks):
            h = block(w, f"downblocks.{index}", h, features)
            skips.append(h)
            index += 1
        if level < len(multipliers) - 1:
            h = conv(w, f"downblocks.{index}.main", h, padding=1, stride=2)
            skips.append(h)
            index += 1
    h = block(w, "middleblocks.0", h, features)
    h = attention(w, "middleblocks.0.attn", h)
    h = block(w, "middleblocks.1", h, features)
    index = 0
    for level in reversed(range(len(multipliers))):
        for _ in range(blocks + 1):
            h = block(w, f"upblocks.{index}", torch.cat([h, skips.pop()], 1), features)
            index += 1
        if level > 0:
            h = h.repeat_interleave(2, 2).repeat_interleave(2, 3)
            h = conv(w, f"upblocks.{index}.main", h, padding=1)
            index += 1
    assert not skips
    return conv(w, "tail.2", swish(norm(w, "tail.0", h)), padding=1)


def swish(x):
    return x / (1 + torch.exp(-x))


def norm(w, name, x):
    return group_norm(x, w["groups"], w[f"{name}.weight"], w[f"{name}.bias"], eps=1e-5)


def conv(w, name, x, **settings):
    return conv2d(x, w[f"{name}.weight"], w[f"{name}.bias"], **settings)


def block(w, name, x, features):
    h = conv(w, f"{name}.block1.2", swish(norm(w, f"{name}.block1.0", x)), padding=1)
    shift = linear(swish(features), w[f"{name}.temb_proj.1.weight"], w[f"{name}.temb_proj.1.bias"])
    h = h + shift[:, :, None, None]
    h = conv(w, f"{name}.block2.3", swish(norm(w, f"{name}.block2.0", h)), padding=1)
    return h + (conv(w, f"{name}.shortcut", x) if f"{name}.shortcut.weight" in w else x)


def attention(w, name, x):
    h = norm(w, f"{name}.group_norm", x)
    q, k, v = (conv(w, f"{name}.proj_{part}", h) for part in "qkv")
    b, c, height, width = x.shape
    out = torch.empty_like(x)
    for i in range(b):
        q_i, k_i, v_i = (part[i].reshape(c, -1) for part in (q, k, v))
        weights = softmax(q_i.T @ k_i / math.sqrt(c), dim=1)  # (from, to)
        out[i] = (v_i @ weights.T).reshape(c, height, width)
    return x + conv(w, f"{name}.proj", out)
