"""The openai Python client against a server that always says "hello world"."""

import asyncio
import sys

import openai
from openai import AsyncOpenAI, OpenAI

URL = sys.argv[1]
client = OpenAI(base_url=URL, api_key="x", max_retries=0, timeout=20)
HI = [{"role": "user", "content": "hi"}]


def models():
    assert [m.id for m in client.models.list()] == ["m", "alias"]
    assert client.models.retrieve("m").object == "model"


def chat():
    answer = client.chat.completions.create(model="m", messages=HI, temperature=0, logprobs=True, top_logprobs=2)
    choice = answer.choices[0]
    assert choice.message.role == "assistant" and choice.message.content == "hello world"
    assert choice.finish_reason == "stop" and answer.usage.completion_tokens == 3
    assert [t.token for t in choice.logprobs.content] == ["hello", " world"]
    assert len(choice.logprobs.content[0].top_logprobs) == 2
    many = client.chat.completions.create(model="m", messages=HI, n=2, max_completion_tokens=1)
    assert [(c.index, c.message.content, c.finish_reason) for c in many.choices] == [
        (0, "hello", "length"),
        (1, "hello", "length"),
    ]


def streaming():
    chunks = list(
        client.chat.completions.create(model="m", messages=HI, stream=True, stream_options={"include_usage": True})
    )
    assert chunks[0].choices[0].delta.role == "assistant"
    assert "".join(c.choices[0].delta.content or "" for c in chunks if c.choices) == "hello world"
    reasons = [c.choices[0].finish_reason for c in chunks if c.choices]
    assert reasons[-1] == "stop" and not any(reasons[:-1])
    assert chunks[-1].choices == [] and chunks[-1].usage.total_tokens == chunks[-1].usage.prompt_tokens + 3
    assert len({c.id for c in chunks}) == 1
    with client.chat.completions.stream(model="m", messages=HI) as stream:
        for _ in stream:
            pass
        assert stream.get_final_completion().choices[0].message.content == "hello world"


def completions():
    answer = client.completions.create(model="m", prompt=["a", "b"], echo=True, logprobs=1, max_tokens=2)
    assert [c.text for c in answer.choices] == ["ahello world", "bhello world"]
    logprobs = answer.choices[0].logprobs
    assert logprobs.tokens == ["a", "hello", " world"] and logprobs.token_logprobs[0] is None
    assert logprobs.text_offset == [0, 1, 6]
    text = "".join(c.choices[0].text for c in client.completions.create(model="m", prompt=[97, 98], stream=True))
    assert text == "hello world"
    stopped = client.completions.create(model="m", prompt="x", stop=[" wor"])
    assert (stopped.choices[0].text, stopped.choices[0].finish_reason) == ("hello", "stop")


def errors():
    for kind, body in [
        (openai.NotFoundError, dict(model="other", messages=HI)),
        (openai.BadRequestError, dict(model="m", messages=[])),
        (openai.BadRequestError, dict(model="m", messages=HI, tools=[{"type": "function", "function": {"name": "f"}}])),
        (openai.BadRequestError, dict(model="m", messages=[{"role": "user", "content": "x" * 9999}])),
    ]:
        try:
            client.chat.completions.create(**body)
        except kind as e:
            assert e.body["message"] and e.type == "invalid_request_error", e
            code = e.code
        else:
            raise AssertionError(f"no {kind.__name__}")
    assert code == "context_length_exceeded"


async def concurrent():
    async with AsyncOpenAI(base_url=URL, api_key="x", max_retries=0, timeout=20) as many:
        calls = [many.chat.completions.create(model="m", messages=HI, seed=i) for i in range(20)]
        answers = await asyncio.gather(*calls)
        assert {a.choices[0].message.content for a in answers} == {"hello world"}


models()
chat()
streaming()
completions()
errors()
asyncio.run(concurrent())
print("all passed")
