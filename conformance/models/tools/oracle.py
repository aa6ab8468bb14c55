"""An independent decoder in numpy (float64), and the fixtures made with it.

    python3 -m venv venv && venv/bin/pip install numpy gguf
    venv/bin/python oracle.py quants  OUT.gguf            one tensor of each block format with its dequantised weights
    venv/bin/python oracle.py tiny    OUT_FOLDER          random-weight models of every family, with expected logits
    venv/bin/python oracle.py logits  MODEL.gguf OUT.json top logits of a real GGUF at some positions

Formulas follow the models' papers and transformers' modelling files; no code is shared with the Rust side.
"""
import json
import math
import os
import struct
import sys

import numpy as np


# ---------------------------------------------------------------- the decoder

def inverse_frequencies(config):
    dim, base = config["head_dim"], config["rope_theta"]
    inv = base ** (-np.arange(0, dim, 2, dtype=np.float64) / dim)
    scaling = config.get("rope_scaling") or {}
    kind = scaling.get("rope_type", "default")
    attention = 1.0
    if kind == "linear":
        inv = inv / scaling["factor"]
    elif kind == "llama3":
        old, low, high = scaling["original_max_position_embeddings"], scaling["low_freq_factor"], scaling["high_freq_factor"]
        out = []
        for f in inv:
            wavelength = 2 * math.pi / f
            if wavelength < old / high:
                out.append(f)
            elif wavelength > old / low:
                out.append(f / scaling["factor"])
            else:
                smooth = (old / wavelength - low) / (high - low)
                out.append((1 - smooth) * f / scaling["factor"] + smooth * f)
        inv = np.array(out)
    elif kind == "yarn":
        old, factor = scaling["original_max_position_embeddings"], scaling["factor"]
        correction = lambda rotations: dim * math.log(old / (rotations * 2 * math.pi)) / (2 * math.log(base))
        low, high = max(math.floor(correction(32)), 0), min(math.ceil(correction(1)), dim - 1)
        ramp = np.clip((np.arange(dim // 2) - low) / max(high - low, 0.001), 0, 1)
        inv = inv / factor * ramp + inv * (1 - ramp)
        attention = 0.1 * math.log(factor) + 1
    return inv, attention


def rms_norm(x, weight, eps):
    return x / np.sqrt((x * x).mean(-1, keepdims=True) + eps) * weight


def rotate(x, cos, sin):
    half = x.shape[-1] // 2
    return x * cos + np.concatenate([-x[..., half:], x[..., :half]], -1) * sin


def forward(config, w, tokens):
    """Logits, tokens x vocabulary."""
    heads, kv, d = config["num_attention_heads"], config["num_key_value_heads"], config["head_dim"]
    eps, n = config["rms_norm_eps"], len(tokens)
    inv, attention = inverse_frequencies(config)
    angles = np.outer(np.arange(n), inv)
    angles = np.concatenate([angles, angles], -1)[:, None, :]
    cos, sin = np.cos(angles) * attention, np.sin(angles) * attention
    mask = np.tril(np.ones((n, n), bool))
    window = config.get("sliding_window") if config.get("use_sliding_window", config["model_type"] == "mistral") else None
    if window:
        mask &= np.arange(n)[:, None] - np.arange(n)[None, :] < window
    x = w["model.embed_tokens.weight"][tokens]
    for i in range(config["num_hidden_layers"]):
        p = f"model.layers.{i}."
        linear = lambda name, v: v @ w[p + name + ".weight"].T + w.get(p + name + ".bias", 0.0)
        h = rms_norm(x, w[p + "input_layernorm.weight"], eps)
        q = linear("self_attn.q_proj", h).reshape(n, heads, d)
        k = linear("self_attn.k_proj", h).reshape(n, kv, d)
        v = linear("self_attn.v_proj", h).reshape(n, kv, d)
        if p + "self_attn.q_norm.weight" in w:
            q = rms_norm(q, w[p + "self_attn.q_norm.weight"], eps)
            k = rms_norm(k, w[p + "self_attn.k_norm.weight"], eps)
        q, k = rotate(q, cos, sin), rotate(k, cos, sin)
        k, v = np.repeat(k, heads // kv, 1), np.repeat(v, heads // kv, 1)
        scores = np.einsum("qhd,khd->hqk", q, k) / math.sqrt(d)
        scores = np.where(mask[None], scores, -np.inf)
        scores = np.exp(scores - scores.max(-1, keepdims=True))
        scores /= scores.sum(-1, keepdims=True)
        x = x + linear("self_attn.o_proj", np.einsum("hqk,khd->qhd", scores, v).reshape(n, heads * d))
        h = rms_norm(x, w[p + "post_attention_layernorm.weight"], eps)
        gate = linear("mlp.gate_proj", h)
        x = x + linear("mlp.down_proj", gate / (1 + np.exp(-gate)) * linear("mlp.up_proj", h))
    x = rms_norm(x, w["model.norm.weight"], eps)
    head = "model.embed_tokens.weight" if config["tie_word_embeddings"] else "lm_head.weight"
    return x @ w[head].T


# ---------------------------------------------------------------- fixtures

def quants(out):
    import gguf
    from gguf import GGMLQuantizationType as T

    rng = np.random.default_rng(7)
    writer = gguf.GGUFWriter(out, "fixture")
    halves = {T.Q4_0: [0], T.Q4_1: [0, 2], T.Q5_0: [0], T.Q5_1: [0, 2], T.Q8_0: [0], T.Q2_K: [80, 82], T.Q3_K: [108],
              T.Q4_K: [0, 2], T.Q5_K: [0, 2], T.Q6_K: [208]}
    for kind, places in halves.items():
        per_block, size = gguf.GGML_QUANT_SIZES[kind]
        blocks = rng.integers(0, 256, (2, 512 // per_block, size), dtype=np.uint8)
        for place in places:
            scale = rng.normal(0, 0.02, blocks.shape[:2]).astype(np.float16)
            blocks[:, :, place:place + 2] = scale[..., None].view(np.uint8)
        data = blocks.reshape(2, -1)
        writer.add_tensor(kind.name, data, raw_dtype=kind)
        writer.add_tensor(kind.name + ".expected", gguf.dequantize(data, kind).astype(np.float32).reshape(2, 512))
    floats = rng.normal(0, 1, (2, 512)).astype(np.float32)
    f16, bf16 = floats.astype(np.float16), gguf.quantize(floats, T.BF16)
    writer.add_tensor("F16", f16)
    writer.add_tensor("F16.expected", f16.astype(np.float32))
    writer.add_tensor("BF16", bf16, raw_dtype=T.BF16)
    writer.add_tensor("BF16.expected", gguf.dequantize(bf16, T.BF16).astype(np.float32).reshape(2, 512))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


BASE = dict(hidden_size=16, num_attention_heads=4, num_key_value_heads=2, head_dim=8, intermediate_size=24, vocab_size=40,
            num_hidden_layers=2, max_position_embeddings=64, rms_norm_eps=1e-5, rope_theta=10000.0, hidden_act="silu",
            tie_word_embeddings=True, bos_token_id=1, eos_token_id=2)
FAMILIES = {
    "llama": dict(model_type="llama", num_key_value_heads=4, tie_word_embeddings=False, rope_scaling=None),
    "llama3": dict(model_type="llama", rope_theta=500000.0, rope_scaling=dict(
        rope_type="llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=16)),
    "linear": dict(model_type="llama", rope_scaling=dict(rope_type="linear", factor=2.0)),
    "mistral": dict(model_type="mistral", sliding_window=5, tie_word_embeddings=False),
    "qwen2": dict(model_type="qwen2", use_sliding_window=False, rms_norm_eps=1e-6, rope_theta=1000000.0),
    "yarn": dict(model_type="qwen2", use_sliding_window=False, rope_theta=10000.0, tie_word_embeddings=False,
                 rope_scaling=dict(rope_type="yarn", factor=4.0, original_max_position_embeddings=16)),
    "qwen3": dict(model_type="qwen3", head_dim=12, rms_norm_eps=1e-6, rope_theta=1000000.0),
}
TOKENS = [1, 7, 3, 39, 12, 12, 5, 30, 22, 0, 17, 9]


def weights(config, rng):
    h, d, f = config["hidden_size"], config["head_dim"], config["intermediate_size"]
    q, kv = config["num_attention_heads"] * d, config["num_key_value_heads"] * d
    w = {}

    def add(name, *shape, around=0.0, spread=0.35):
        value = rng.normal(around, spread, shape).astype(np.float32)
        bits = (value.view(np.uint32) + 0x8000) >> 16
        w[name] = (bits << 16).astype(np.uint32).view(np.float32)

    add("model.embed_tokens.weight", config["vocab_size"], h, spread=1.0)
    for i in range(config["num_hidden_layers"]):
        p = f"model.layers.{i}."
        add(p + "input_layernorm.weight", h, around=1.0)
        add(p + "post_attention_layernorm.weight", h, around=1.0)
        for name, rows, cols in [("q", q, h), ("k", kv, h), ("v", kv, h), ("o", h, q)]:
            add(p + f"self_attn.{name}_proj.weight", rows, cols)
            if config["model_type"] == "qwen2" and name != "o":
                add(p + f"self_attn.{name}_proj.bias", rows)
        if config["model_type"] == "qwen3":
            add(p + "self_attn.q_norm.weight", d, around=1.0)
            add(p + "self_attn.k_norm.weight", d, around=1.0)
        add(p + "mlp.gate_proj.weight", f, h)
        add(p + "mlp.up_proj.weight", f, h)
        add(p + "mlp.down_proj.weight", h, f)
    add("model.norm.weight", h, around=1.0)
    if not config["tie_word_embeddings"]:
        add("lm_head.weight", config["vocab_size"], h)
    return w


def save_safetensors(path, w):
    header, at = {}, 0
    for name, value in w.items():
        header[name] = dict(dtype="BF16", shape=list(value.shape), data_offsets=[at, at + value.size * 2])
        at += value.size * 2
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as out:
        out.write(struct.pack("<Q", len(text)) + text)
        for value in w.values():
            out.write((value.reshape(-1).view(np.uint32) >> 16).astype(np.uint16).tobytes())


def tiny_tokenizer():
    """A byte-level BPE of 40 tokens: enough to load."""
    texts = ["<unk>", "<s>", "</s>"] + [chr(c) for c in range(ord("a"), ord("z") + 1)] + ["Ġ", ".", "th", "Ġth", "he", "in",
             "an", "er", "on", "re", "at"]
    added = [dict(id=i, content=texts[i], single_word=False, lstrip=False, rstrip=False, normalized=False, special=True)
             for i in range(3)]
    merges = [["t", "h"], ["Ġ", "th"], ["h", "e"], ["i", "n"], ["a", "n"], ["e", "r"], ["o", "n"], ["r", "e"], ["a", "t"]]
    return dict(version="1.0", truncation=None, padding=None, added_tokens=added, normalizer=None,
                pre_tokenizer=dict(type="ByteLevel", add_prefix_space=False, trim_offsets=True, use_regex=True),
                post_processor=None, decoder=dict(type="ByteLevel", add_prefix_space=True, trim_offsets=True, use_regex=True),
                model=dict(type="BPE", dropout=None, unk_token=None, continuing_subword_prefix=None, end_of_word_suffix=None,
                           fuse_unk=False, byte_fallback=False, ignore_merges=False,
                           vocab={t: i for i, t in enumerate(texts)}, merges=merges))


def tiny(out):
    for seed, (name, change) in enumerate(FAMILIES.items()):
        config = {**BASE, **change}
        folder = os.path.join(out, name)
        os.makedirs(folder, exist_ok=True)
        w = weights(config, np.random.default_rng(100 + seed))
        save_safetensors(os.path.join(folder, "model.safetensors"), w)
        write = lambda file, value: json.dump(value, open(os.path.join(folder, file), "w"), ensure_ascii=False)
        write("config.json", config)
        write("tokenizer.json", tiny_tokenizer())
        logits = forward(config, {k: v.astype(np.float64) for k, v in w.items()}, TOKENS)
        picked = [len(TOKENS) - 1, 4]
        write("expected.json", dict(tokens=TOKENS, logits={str(t): [round(float(v), 6) for v in logits[t]] for t in picked}))


PROMPTS = ["The capital of France is", "def fibonacci(n):\n    if n", "Once upon a time, in 1987, the"]


def logits(model, out):
    import gguf

    reader = gguf.GGUFReader(model)
    names = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
    parts = {"attn_norm": "input_layernorm", "attn_q": "self_attn.q_proj", "attn_k": "self_attn.k_proj",
             "attn_v": "self_attn.v_proj", "attn_output": "self_attn.o_proj", "ffn_norm": "post_attention_layernorm",
             "ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj", "ffn_down": "mlp.down_proj"}
    field = lambda key: reader.fields["llama." + key].contents()
    heads, kv, hidden = field("attention.head_count"), field("attention.head_count_kv"), field("embedding_length")
    config = dict(model_type="llama", hidden_size=hidden, num_attention_heads=heads, num_key_value_heads=kv,
                  head_dim=hidden // heads, num_hidden_layers=field("block_count"),
                  rms_norm_eps=field("attention.layer_norm_rms_epsilon"), rope_theta=field("rope.freq_base"))
    w = {}
    for t in reader.tensors:
        value = gguf.dequantize(t.data, t.tensor_type).reshape([int(x) for x in reversed(t.shape)]).astype(np.float64)
        stem = t.name.rsplit(".", 1)[0]
        if stem.startswith("blk."):
            _, layer, part = stem.split(".")
            if part in ("attn_q", "attn_k"):
                n = heads if part == "attn_q" else kv
                value = value.reshape(n, config["head_dim"] // 2, 2, -1).swapaxes(1, 2).reshape(value.shape)
            stem = f"model.layers.{layer}.{parts[part]}"
        else:
            stem = names[stem]
        w[stem + ".weight"] = value
    config["tie_word_embeddings"] = "lm_head.weight" not in w
    cases = []
    for prompt in PROMPTS:
        tokens = [int(t) for t in os.environ["TOKENS_" + str(PROMPTS.index(prompt))].split(",")]
        result = forward(config, w, tokens)
        rows = {}
        for position in sorted({0, len(tokens) // 2, len(tokens) - 1}):
            order = np.argsort(-result[position])[:20]
            rows[str(position)] = [[int(i), round(float(result[position][i]), 5)] for i in order]
        cases.append(dict(prompt=prompt, tokens=tokens, top=rows))
    json.dump(dict(model=os.path.basename(model), cases=cases), open(out, "w"))


if __name__ == "__main__":
    command, arguments = sys.argv[1], sys.argv[2:]
    {"quants": quants, "tiny": tiny, "logits": logits}[command](*arguments)
