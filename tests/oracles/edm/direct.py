"""Reference EDM networks in NumPy and float64, with one function per equation.

Written from the papers' definitions and the tensors' names; shares no code with the package.
"""

import numpy as np


def silu(x):
    return x / (1 + np.exp(-x))


def conv(x, weight, bias=None, padding=None):
    """Cross-correlation with zero padding."""
    k = weight.shape[-1]
    p = k // 2 if padding is None else padding
    x = np.pad(x, ((0, 0), (0, 0), (p, p), (p, p)))
    height, width = x.shape[2] - k + 1, x.shape[3] - k + 1
    out = np.zeros((x.shape[0], weight.shape[0], height, width))
    for i in range(k):
        for j in range(k):
            window = x[:, :, i : i + height, j : j + width]
            out += np.einsum("bchw,oc->bohw", window, weight[:, :, i, j])
    return out if bias is None else out + bias[:, None, None]


def down(x, taps, padding=None):
    """Low-pass filter and keep every second pixel, along one axis after the other."""
    taps = np.asarray(taps, float) / np.sum(taps)
    p = (len(taps) - 1) // 2 if padding is None else padding
    for axis in (2, 3):
        x = np.moveaxis(x, axis, 0)
        n = (len(x) + 2 * p - len(taps)) // 2 + 1
        out = np.zeros((n, *x.shape[1:]))
        for i in range(n):
            for a, tap in enumerate(taps):
                if 0 <= 2 * i + a - p < len(x):
                    out[i] += tap * x[2 * i + a - p]
        x = np.moveaxis(out, 0, axis)
    return x


def up(x, taps):
    """Insert zeros between the pixels and low-pass filter with gain 2, along each axis."""
    taps = 2 * np.asarray(taps, float) / np.sum(taps)
    p = (len(taps) - 1) // 2
    for axis in (2, 3):
        x = np.moveaxis(x, axis, 0)
        out = np.zeros((2 * len(x), *x.shape[1:]))
        for i in range(len(x)):
            for a, tap in enumerate(taps):
                if 0 <= 2 * i + a - p < len(out):
                    out[2 * i + a - p] += tap * x[i]
        x = np.moveaxis(out, 0, axis)
    return x


def group_norm(x, weight, bias, eps):
    b, c, h, w = x.shape
    grouped = x.reshape(b, min(32, c // 4), -1)
    mean, var = grouped.mean(2, keepdims=True), grouped.var(2, keepdims=True)
    normed = ((grouped - mean) / np.sqrt(var + eps)).reshape(b, c, h, w)
    return normed * weight[:, None, None] + bias[:, None, None]


def attention(q, k, v):
    """One head of one image; q, k and v have shape (C, pixels)."""
    weights = np.exp((logits := q.T @ k / np.sqrt(len(q))) - logits.max(1, keepdims=True))
    return v @ (weights / weights.sum(1, keepdims=True)).T


class Tensors:
    """The tensors whose names start with a prefix."""

    def __init__(self, tensors, prefix):
        self.tensors, self.prefix = tensors, prefix

    def __getitem__(self, name):
        return self.tensors[self.prefix + name]

    def __contains__(self, name):
        return self.prefix + name in self.tensors

    def conv(self, name, x, **options):
        return conv(x, self[f"{name}.weight"], self[f"{name}.bias"], **options)

    def norm(self, name, x, eps):
        return group_norm(x, self[f"{name}.weight"], self[f"{name}.bias"], eps)

    def linear(self, name, x):
        return x @ self[f"{name}.weight"].T + self[f"{name}.bias"]


def block(t, x, emb, song, resample=lambda x: x, channels_per_head=None):
    """One residual block: of DDPM++ and NCSN++ if ``song``, else of ADM."""
    eps, scale = (1e-6, np.sqrt(0.5)) if song else (1e-5, 1.0)
    h = t.conv("conv0", resample(silu(t.norm("norm0", x, eps))))
    shift = t.linear("affine", emb)[:, :, None, None]
    if song:
        h = silu(t.norm("norm1", h + shift, eps))
    else:
        gain, shift = np.split(shift, 2, axis=1)
        h = silu(t.norm("norm1", h, eps) * (1 + gain) + shift)
    h = t.conv("conv1", h)
    side = resample(x)
    h = (h + (t.conv("skip", side) if "skip.weight" in t else side)) * scale
    if "qkv.weight" in t:
        b, c, height, width = h.shape
        heads = 1 if channels_per_head is None else c // channels_per_head
        qkv = t.conv("qkv", t.norm("norm2", h, eps)).reshape(b, heads, c // heads, 3, -1)
        mixed = np.array(
            [
                [attention(*(image[n][:, i] for i in range(3))) for n in range(heads)]
                for image in qkv
            ]
        )
        h = (h + t.conv("proj", mixed.reshape(b, c, height, width))) * scale
    return h


def positional(noise, channels, endpoint):
    half = channels // 2
    k = np.arange(half) / (half - 1 if endpoint else half)
    angles = np.outer(noise, 10000.0**-k)
    return np.cos(angles), np.sin(angles)


def song(tensors, config, x, noise, one_hot=None):
    """DDPM++ and NCSN++."""
    root, taps = Tensors(tensors, ""), config["resample_filter"]
    if config["embedding_type"] == "positional":
        channels = config["model_channels"] * config["channel_mult_noise"]
        cos, sin = positional(noise, channels, endpoint=True)
    else:
        angles = 2 * np.pi * np.outer(noise, tensors["map_noise.freqs"])
        cos, sin = np.cos(angles), np.sin(angles)
    emb = np.concatenate([sin, cos], axis=1)
    if one_hot is not None:
        emb = emb + root.linear("map_label", one_hot * np.sqrt(one_hot.shape[1]))
    emb = silu(root.linear("map_layer1", silu(root.linear("map_layer0", emb))))
    h, residual, skips = x, x, []
    for name in layers(tensors):
        t, role = Tensors(tensors, f"{name}."), name.partition("_")[2]
        if role == "aux_norm":
            h = group_norm(h, t["weight"], t["bias"], 1e-6)
        elif role == "aux_conv":
            h = conv(silu(h), t["weight"], t["bias"])
        elif role == "aux_residual":
            wide = conv(residual, t["weight"], padding=1 + (len(taps) - 1) // 2)
            downsampled = down(wide, taps, padding=0) + t["bias"][:, None, None]
            h = residual = skips[-1] = (h + downsampled) / np.sqrt(2)
        elif role == "conv":
            h = conv(h, t["weight"], t["bias"])
            skips.append(h)
        elif name.startswith("enc"):
            h = block(t, h, emb, True, resampling(role, taps))
            skips.append(h)
        else:
            if role.startswith("block"):
                h = np.concatenate([h, skips.pop()], axis=1)
            h = block(t, h, emb, True, resampling(role, taps))
    return h


def adm(tensors, config, x, noise, one_hot=None):
    """ADM."""
    root = Tensors(tensors, "")
    emb = np.concatenate(positional(noise, config["model_channels"], endpoint=False), axis=1)
    emb = root.linear("map_layer1", silu(root.linear("map_layer0", emb)))
    if one_hot is not None:
        emb = emb + one_hot @ tensors["map_label.weight"].T
    emb, h, skips = silu(emb), x, []
    for name in layers(tensors):
        t, role = Tensors(tensors, f"{name}."), name.partition("_")[2]
        if name.startswith("dec") and role.startswith("block"):
            h = np.concatenate([h, skips.pop()], axis=1)
        if role == "conv":
            h = conv(h, t["weight"], t["bias"])
        else:
            h = block(t, h, emb, False, resampling(role, (1, 1)), channels_per_head=64)
        if name.startswith("enc"):
            skips.append(h)
    return root.conv("out_conv", silu(root.norm("out_norm", h, 1e-5)))


def layers(tensors):
    """Encoder and decoder layers in execution order."""
    names = dict.fromkeys(".".join(key.split(".")[:2]) for key in tensors)
    return [name for name in names if name.startswith(("enc.", "dec."))]


def resampling(role, taps):
    return {"down": lambda x: down(x, taps), "up": lambda x: up(x, taps)}.get(role, lambda x: x)
