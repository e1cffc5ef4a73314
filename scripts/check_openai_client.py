#!/usr/bin/env python3
"""Checks a running server with OpenAI's own Python package, unchanged, and with curl.

usage: check_openai_client.py ADDRESS
Needs the package `openai`, and a server started as
    muser serve --parallel 1 --queue 4 --api-key check-use --metrics-key check-metrics
on the model that ships with the program. Says what is wrong and exits 1 at the first thing that is."""
import asyncio
import json
import subprocess
import sys
import time
import urllib.request

import openai

KEY, METRICS_KEY = "check-use", "check-metrics"
QUEUE = 4
QUESTION = [{"role": "system", "content": "You tell stories."}, {"role": "user", "content": "Begin."}]
# Far beyond what anything here takes: it only keeps a server that hangs from hanging this.
TIMEOUT_S = 120


def expect(holds, what):
    if not holds:
        sys.exit(f"wrong: {what}")


def expect_error(kind, status, type_, call):
    """The package maps the refusal to its own exception, with the envelope's fields."""
    try:
        call()
    except kind as error:
        expect(error.status_code == status and error.body["type"] == type_, f"{kind.__name__}: {error.body}")
        return error
    sys.exit(f"wrong: no {kind.__name__}")


def metric(address, name):
    headers = {"Authorization": f"Bearer {METRICS_KEY}"}
    request = urllib.request.Request(f"{address}/metrics", headers=headers)
    with urllib.request.urlopen(request, timeout=TIMEOUT_S) as answer:
        samples = (line.rsplit(" ", 1) for line in answer.read().decode().splitlines())
        return float(next(value for found, value in samples if found == name))


def wait_for(what, holds):
    end = time.monotonic() + TIMEOUT_S
    while not holds():
        expect(time.monotonic() < end, f"never {what}")
        time.sleep(0.01)


def check_models(client):
    models = client.models.list().data
    expect(len(models) == 1 and models[0].object == "model", models)
    expect(client.models.list().to_dict()["object"] == "list", "the list of models")
    return models[0].id


def check_texts(client, model):
    asked = dict(model=model, prompt="Once upon a time", max_tokens=16, seed=7, temperature=1.0, logprobs=2,
                 extra_body={"ignore_eos": True})
    whole = client.completions.create(**asked)
    choice, usage = whole.choices[0], whole.usage
    expect(choice.finish_reason == "length" and choice.text, choice)
    expect(usage.completion_tokens == 16 and usage.total_tokens == usage.prompt_tokens + 16, usage)
    logprobs = choice.logprobs
    expect(len(logprobs.tokens) == len(logprobs.token_logprobs) == len(logprobs.text_offset) == 16, logprobs)
    expect(all(value <= 0 for value in logprobs.token_logprobs), logprobs.token_logprobs)
    expect(client.completions.create(**asked).choices[0].text == choice.text, "a seed gives two texts")

    chunks = list(client.completions.create(**asked, stream=True, stream_options={"include_usage": True}))
    text = "".join(chunk.choices[0].text for chunk in chunks if chunk.choices)
    values = [v for chunk in chunks if chunk.choices for v in chunk.choices[0].logprobs.token_logprobs]
    expect((text, values) == (choice.text, logprobs.token_logprobs), f"the stream says {text!r}, not {choice.text!r}")
    # The first request may have left the prompt to the others.
    counts = chunks[-1].usage
    expect((counts.prompt_tokens, counts.completion_tokens) == (usage.prompt_tokens, 16), counts)

    stop = choice.text[len(choice.text) // 2:][:4]
    cut = client.completions.create(**asked, stop=[stop]).choices[0]
    expect(cut.finish_reason == "stop" and cut.text == choice.text.split(stop)[0], f"{cut} at {stop!r}")
    several = client.completions.create(**(asked | {"prompt": ["Once upon a time", "The cat"]}), n=2)
    expect([c.index for c in several.choices] == [0, 1, 2, 3], several.choices)
    expect(several.choices[0].text == choice.text, "one of several answers is another than alone")


def check_chat(client, model):
    asked = dict(model=model, messages=QUESTION, max_completion_tokens=12, seed=3, logprobs=True, top_logprobs=2,
                 stop=None, extra_body={"ignore_eos": True})
    whole = client.chat.completions.create(**asked)
    choice = whole.choices[0]
    expect(choice.message.role == "assistant" and choice.finish_reason == "length", choice)
    expect(len(choice.logprobs.content) == 12 and len(choice.logprobs.content[0].top_logprobs) == 2, choice.logprobs)
    chunks = list(client.chat.completions.create(**asked, stream=True, stream_options={"include_usage": True}))
    told = [chunk.choices[0] for chunk in chunks if chunk.choices]
    expect(told[0].delta.role == "assistant", told[0])
    expect("".join(c.delta.content or "" for c in told) == choice.message.content, "the stream says something else")
    expect([c.finish_reason for c in told if c.finish_reason] == ["length"], "not one end")
    expect(chunks[-1].choices == [] and chunks[-1].usage.completion_tokens == 12, chunks[-1])
    logprobs = [entry.logprob for c in told if c.logprobs for entry in c.logprobs.content]
    expect(logprobs == [entry.logprob for entry in choice.logprobs.content], "the stream's logprobs are others")

    with client.chat.completions.with_streaming_response.create(**asked) as answer:
        expect(answer.headers["content-type"] == "application/json", answer.headers)
    raw = client.chat.completions.with_raw_response.create(**asked)
    expect(raw.status_code == 200 and raw.parse().choices[0].message.content == choice.message.content, raw.text)


def check_errors(address, client, model):
    def chat(**more):
        return lambda: client.chat.completions.create(**(dict(model=model, messages=QUESTION) | more))

    bad = (openai.BadRequestError, 400, "invalid_request_error")
    expect_error(*bad, chat(messages=[]))
    expect_error(*bad, chat(temperature=-1))
    expect_error(*bad, chat(extra_body={"temprature": 1}))
    expect_error(*bad, chat(tools=[{"type": "function", "function": {"name": "f", "parameters": {}}}]))
    expect_error(*bad, chat(response_format={"type": "json_object"}))
    expect_error(*bad, lambda: client.completions.create(model=model, prompt="a", echo=True))
    for stream in (False, True):
        ask = lambda: client.completions.create(model=model, prompt=[300] * 5000, stream=stream)
        error = expect_error(openai.BadRequestError, 400, "exceed_context_size_error", ask)
        expect(error.body["n_prompt_tokens"] == 5000 and error.body["n_ctx"] > 0, error.body)
    not_found = lambda: client.embeddings.create(model=model, input="a")
    expect_error(openai.NotFoundError, 404, "not_found_error", not_found)
    stranger = openai.OpenAI(base_url=f"{address}/v1", api_key="nobody", max_retries=0)
    ask = lambda: stranger.completions.create(model=model, prompt="a")
    expect_error(openai.AuthenticationError, 401, "authentication_error", ask)
    reader = openai.OpenAI(base_url=f"{address}/v1", api_key=METRICS_KEY, max_retries=0)
    ask = lambda: reader.completions.create(model=model, prompt="a")
    expect_error(openai.PermissionDeniedError, 403, "permission_error", ask)


def check_full_queue_and_leaving(address, client, model):
    """One runs, some wait, the next one is turned away; then all leave, and the server is free at once."""
    cancelled = metric(address, "muser:sequences_cancelled_total")
    # As long as the context: only a server that notices who leaves is soon done with it.
    endless = dict(model=model, prompt="Once", stream=True, extra_body={"ignore_eos": True, "cache_prompt": False})
    running = client.completions.create(**endless)
    next(iter(running))
    command = ["curl", "-sS", "-N", "-H", f"Authorization: Bearer {KEY}", f"{address}/v1/completions",
               "-d", '{"prompt": "Once", "ignore_eos": true}']
    waiting = [subprocess.Popen(command, stdout=subprocess.DEVNULL) for _ in range(QUEUE)]
    wait_for("a full queue", lambda: metric(address, "llamacpp:requests_deferred") == QUEUE)
    one_more = lambda: client.completions.create(model=model, prompt="a", max_tokens=1)
    error = expect_error(openai.RateLimitError, 429, "rate_limit_error", one_more)
    expect(int(error.response.headers["retry-after"]) > 0, error.response.headers)
    for process in waiting:
        process.kill()
        process.wait()
    running.close()
    busy = ("llamacpp:requests_processing", "llamacpp:requests_deferred")
    wait_for("idle", lambda: all(metric(address, name) == 0 for name in busy))
    found = metric(address, "muser:sequences_cancelled_total") - cancelled
    expect(found == 1 + QUEUE, f"{found} requests were given up, not {1 + QUEUE}")
    expect(one_more().usage.completion_tokens == 1, "the next request")


async def check_async(address, model, sync_client):
    asked = dict(model=model, messages=QUESTION, max_tokens=8, seed=5)
    want = sync_client.chat.completions.create(**asked).choices[0].message.content
    async with openai.AsyncOpenAI(base_url=f"{address}/v1", api_key=KEY, max_retries=0) as client:
        both = await asyncio.gather(*(client.chat.completions.create(**asked) for _ in range(2)))
        expect([one.choices[0].message.content for one in both] == [want, want], both)
        stream = await client.chat.completions.create(**asked, stream=True)
        text = "".join([chunk.choices[0].delta.content or "" async for chunk in stream])
        expect(text == want, f"the asynchronous stream says {text!r}, not {want!r}")


def curl(*arguments):
    command = ["curl", "-sS", "-N", "--max-time", str(TIMEOUT_S), *arguments]
    return subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout.decode()


def check_curl(address):
    """What goes over the line, to the letter."""
    expect(curl(f"{address}/health") == '{"status":"ok"}', "the health")
    auth = ("-H", f"Authorization: Bearer {KEY}")
    body = json.dumps({"messages": QUESTION, "max_tokens": 3, "stream": True, "ignore_eos": True, "seed": 1})
    head, _, stream = curl("-i", *auth, f"{address}/v1/chat/completions", "-d", body).partition("\r\n\r\n")
    expect(head.startswith("HTTP/1.1 200 OK") and "content-type: text/event-stream" in head, head)
    events = stream.split("\n\n")
    expect(events[-2:] == ["data: [DONE]", ""], events[-2:])
    expect(all(event.startswith("data: {") and "\n" not in event for event in events[:-2]), events)
    native = json.dumps({"prompt": "Once", "n_predict": 2, "stream": True, "ignore_eos": True})
    events = curl(*auth, f"{address}/completion", "-d", native).split("\n\n")
    expect(json.loads(events[-2].removeprefix("data: "))["stop"] is True, events[-2:])
    head, _, refusal = curl("-i", *auth, f"{address}/v1/completions", "-d", "{").partition("\r\n\r\n")
    expect(head.startswith("HTTP/1.1 400") and json.loads(refusal)["error"]["code"] == 400, head + refusal)


def main():
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    address = sys.argv[1].rstrip("/")
    client = openai.OpenAI(base_url=f"{address}/v1", api_key=KEY, max_retries=0, timeout=TIMEOUT_S)
    model = check_models(client)
    check_texts(client, model)
    check_chat(client, model)
    check_errors(address, client, model)
    check_full_queue_and_leaving(address, client, model)
    asyncio.run(check_async(address, model, client))
    check_curl(address)
    print(f"openai {openai.__version__} and curl: models, texts, chats, streams, errors and leaving are right")


if __name__ == "__main__":
    main()
