#!/usr/bin/env python3
"""A bundle of ours, over HTTP, against OpenVINO GenAI, in-process (no HTTP and no client: that flatters it), interleaved by
rounds on the same prompts of token ids. Needs the package openvino-genai and a model folder made by
`optimum-cli export openvino -m HF_FOLDER --task text-generation-with-past --weight-format int8 FOLDER`.

  rivals_openvino.py --bundle BUNDLE --model FOLDER [--wright target/release/wright] [--rounds 3] [--cells A1,A4,A16,A32,B1,B4,B16]
              [--raw RAW.jsonl]

Cells: workload (A: 128 prompt and 128 output tokens, B: 512 and 64) and concurrency. Prints a table: output tokens/s of both,
median over rounds, the ratio with its lowest and highest round, and medians of time to first token and between tokens.
"""

import argparse
import asyncio
import json
import random
import statistics
import subprocess
import sys
import time
from urllib.parse import urlparse

import numpy
import openvino
import openvino_genai

WORKLOADS = {"A": (128, 128), "B": (512, 64)}


def prompts(count, tokens, seed):
    """Distinct random token ids: no shared prefix."""
    rng = random.Random(seed)
    return [[rng.randrange(100, 49_000) for _ in range(tokens)] for _ in range(count)]


def summary(wall, firsts, gaps, tokens, due):
    if tokens != due:
        sys.exit(f"{tokens} of {due} tokens came back")
    return {
        "tokens_per_s": tokens / wall,
        "ttft_ms": statistics.median(firsts) * 1e3,
        "itl_ms": statistics.median(gaps) * 1e3,
        "ttfts_ms": [first * 1e3 for first in firsts],
    }


async def stream(url, prompt, output, firsts, gaps):
    """One request; returns the tokens that came."""
    reader, writer = await asyncio.open_connection(url.hostname, url.port, limit=1 << 20)
    body = json.dumps(
        {"model": "default", "prompt": prompt, "max_tokens": output, "temperature": 0, "stream": True,
         "ignore_eos": True, "stream_options": {"include_usage": True}}
    ).encode()
    head = f"POST /v1/completions HTTP/1.1\r\nHost: {url.netloc}\r\nContent-Type: application/json\r\n" \
           f"Connection: close\r\nContent-Length: {len(body)}\r\n\r\n"
    begin = time.perf_counter()
    writer.write(head.encode() + body)
    last, tokens = None, 0
    async for line in reader:
        if not line.startswith(b"data: {"):
            continue
        now = time.perf_counter()
        # Only the last event is parsed: a client that takes processor time takes it from the server under test.
        if b'"completion_tokens"' in line:
            tokens = json.loads(line[6:])["usage"]["completion_tokens"]
            continue
        if last is None:
            firsts.append(now - begin)
        else:
            gaps.append(now - last)
        last = now
    writer.close()
    return tokens


async def ours(url, texts, output, concurrency):
    todo, firsts, gaps = list(texts), [], []
    total = 0

    async def worker():
        nonlocal total
        while todo:
            tokens = await stream(url, todo.pop(), output, firsts, gaps)
            total += tokens

    begin = time.perf_counter()
    await asyncio.gather(*(worker() for _ in range(concurrency)))
    return summary(time.perf_counter() - begin, firsts, gaps, total, len(texts) * output)


def theirs(pipe, texts, output, concurrency):
    config = openvino_genai.GenerationConfig()
    config.max_new_tokens = output
    config.min_new_tokens = output
    config.ignore_eos = True
    config.do_sample = False
    todo, open_requests, firsts, gaps = list(texts), {}, [], []
    total, next_id = 0, 0
    begin = time.perf_counter()
    while todo or open_requests:
        while todo and len(open_requests) < concurrency:
            ids = openvino.Tensor(numpy.array([todo.pop()], dtype=numpy.int64))
            open_requests[next_id] = [pipe.add_request(next_id, ids, config), time.perf_counter(), None]
            next_id += 1
        pipe.step()
        now = time.perf_counter()
        for request, state in list(open_requests.items()):
            handle, since, last = state
            while handle.can_read():
                for part in handle.read().values():
                    fresh = len(part.generated_ids)
                    total += fresh
                    if fresh:
                        if last is None:
                            firsts.append(now - since)
                        else:
                            gaps.append(now - last)
                        last = state[2] = now
            if handle.get_status().name != "RUNNING":
                del open_requests[request]
    return summary(time.perf_counter() - begin, firsts, gaps, total, len(texts) * output)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bundle", required=True)
    parser.add_argument("--model", required=True)
    parser.add_argument("--wright", default="target/release/wright")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--cells", default="A1,A4,A16,A32,B1,B4,B16,B32")
    parser.add_argument("--raw")
    args = parser.parse_args()
    scheduler = openvino_genai.SchedulerConfig()
    scheduler.max_num_seqs = 32
    scheduler.max_num_batched_tokens = 512
    scheduler.cache_size = 2
    pipe = openvino_genai.ContinuousBatchingPipeline(args.model, scheduler, "CPU", {})
    server = subprocess.Popen(
        [args.wright, "serve", args.bundle, "--port", "0", "--model-name", "default"],
        stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
    )
    raw = open(args.raw, "w") if args.raw else None
    try:
        url = urlparse(json.loads(server.stdout.readline())["url"])
        print(f"OpenVINO GenAI {openvino_genai.__version__}, {args.model}: ContinuousBatchingPipeline, max_num_seqs 32,"
              f" max_num_batched_tokens 512; {args.rounds} interleaved rounds")
        print("cell  ours tok/s  theirs tok/s  ratio (lowest to highest round)   TTFT ms ours/theirs   p95 TTFT (all rounds)   ITL ms ours/theirs")
        for cell in args.cells.split(","):
            (prompt, output), concurrency = WORKLOADS[cell[0]], int(cell[1:])
            count = max(4, concurrency) if concurrency < 16 else concurrency
            rows = []
            for round_ in range(-1, args.rounds):
                # The round before the first warms both and is not counted.
                texts = prompts(count if round_ >= 0 else 2, prompt, 1000 * round_ + concurrency + prompt)
                pair = {}
                order = [("ours", 0), ("theirs", 1)] if round_ % 2 == 0 else [("theirs", 1), ("ours", 0)]
                for name, side in order:
                    if side == 0:
                        pair[name] = asyncio.run(ours(url, texts, output, concurrency))
                    else:
                        pair[name] = theirs(pipe, texts, output, concurrency)
                if round_ >= 0:
                    rows.append(pair)
                    if raw:
                        raw.write(json.dumps({"cell": cell, "round": round_, **pair}) + "\n")
            median = lambda side, figure: statistics.median(r[side][figure] for r in rows)
            ratios = sorted(r["ours"]["tokens_per_s"] / r["theirs"]["tokens_per_s"] for r in rows)
            pooled = {side: sorted(t for r in rows for t in r[side]["ttfts_ms"]) for side in ("ours", "theirs")}
            p95 = {side: all_[min(len(all_) - 1, int(0.95 * len(all_)))] for side, all_ in pooled.items()}
            print(f"{cell:<4}  {median('ours', 'tokens_per_s'):10.1f}  {median('theirs', 'tokens_per_s'):12.1f}"
                  f"  {statistics.median(ratios):5.2f} ({ratios[0]:.2f} to {ratios[-1]:.2f})"
                  f"  {median('ours', 'ttft_ms'):18.1f} / {median('theirs', 'ttft_ms'):.1f}"
                  f"  {p95['ours']:16.1f} / {p95['theirs']:.1f}"
                  f"  {median('ours', 'itl_ms'):12.2f} / {median('theirs', 'itl_ms'):.2f}", flush=True)
    finally:
        server.terminate()
        server.wait()


if __name__ == "__main__":
    main()
