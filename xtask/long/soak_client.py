"""200 streamed completions of mixed lengths at concurrency 16; a third of the clients hang up at a random moment. Every
answer that was not hung up on is compared with the answer to the same request alone.

soak_client.py URL TEXT_FILE SEED"""

import http.client
import json
import queue
import random
import sys
import threading
import urllib.parse

REQUESTS, CLIENTS = 200, 16
url, text_file, seed = sys.argv[1], sys.argv[2], int(sys.argv[3])
address = urllib.parse.urlparse(url).netloc
words = open(text_file, encoding="utf-8").read().split()
draw = random.Random(seed)


def body(i):
    length, start = draw.choice([12, 24, 60, 150]), draw.randrange(len(words) - 200)
    return {
        "model": "default",
        "prompt": f"{i}. " + " ".join(words[start : start + length]),
        "max_tokens": draw.choice([8, 16, 48, 96]),
        "stream": True,
        # Greedy ones and sampled ones: neither may depend on what shares the batch.
        "temperature": draw.choice([0, 0, 0.8]),
        "top_p": 0.95,
        "seed": i,
        "ignore_eos": True,
    }


def answer(request, hang_up_after=None):
    """The text, or None after hanging up."""
    connection = http.client.HTTPConnection(address, timeout=300)
    try:
        connection.request("POST", "/v1/completions", json.dumps(request), {"Content-Type": "application/json"})
        response = connection.getresponse()
        if response.status != 200:
            raise RuntimeError(f"status {response.status}: {response.read(300)!r}")
        text, events = "", 0
        for line in response:
            if not line.startswith(b"data: "):
                continue
            data = line[6:].strip()
            if data == b"[DONE]":
                return text
            event = json.loads(data)
            if "error" in event:
                raise RuntimeError(event["error"])
            text += event["choices"][0]["text"] if event["choices"] else ""
            events += 1
            if hang_up_after is not None and events >= hang_up_after:
                return None
        raise RuntimeError("the stream ended without [DONE]")
    finally:
        connection.close()


jobs = queue.Queue()
for i in range(REQUESTS):
    request = body(i)
    hang_up = draw.randrange(1, max(2, request["max_tokens"] - 1)) if draw.random() < 1 / 3 else None
    jobs.put((i, request, hang_up))
done, failed = {}, []


def client():
    while True:
        try:
            i, request, hang_up = jobs.get_nowait()
        except queue.Empty:
            return
        try:
            done[i] = (request, answer(request, hang_up))
        except Exception as error:  # all kinds count
            failed.append(f"request {i}: {error}")


threads = [threading.Thread(target=client) for _ in range(CLIENTS)]
for t in threads:
    t.start()
for t in threads:
    t.join()
stayed = {i: (request, text) for i, (request, text) in done.items() if text is not None}
wrong = [i for i, (request, text) in sorted(stayed.items()) if answer(request) != text]
print(f"soak {seed}: {len(stayed)} completed, {len(done) - len(stayed)} hung up, {len(failed)} failed; "
      f"{len(wrong)} answers differ from the same request alone")
if failed or wrong or not 30 <= len(done) - len(stayed) <= 110:
    sys.exit(f"failed: {failed[:3]}, wrong: {wrong[:3]}")
