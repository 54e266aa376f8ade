"""The official OpenAI client for Python against a running server: what its users do must work.

The server is the one at TROUPE_URL, or the one that the command TROUPE_SERVE starts (it prints
"api http://HOST:PORT"), or otherwise two nodes of the bundled model.
"""

import concurrent.futures
import contextlib
import json
import os
import re
import shlex
import signal
import subprocess
import threading
import time
import urllib.request

from troupe_test import ROOT, SLOWNESS, Tap, binary, need

openai = need("openai")

MODEL = ROOT / "models" / "tiny-solar-nvfp4"
TIMEOUT_S = min(120 * SLOWNESS, 600)
IDLE_TIMEOUT_S = 60 * SLOWNESS
PROMPT = "The old house by the river"
QUESTION = "What is the capital of France?"

WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Get the weather of a city.",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string"}},
            "required": ["city"],
        },
    },
}


@contextlib.contextmanager
def started(command):
    """Runs a command that serves until it is told to end; yields the URL that it prints."""
    process = subprocess.Popen(
        shlex.split(command),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    found, lines, known = [], [], threading.Event()

    def read():
        for line in process.stdout:
            lines.append(line)
            if match := re.match(r"api (http://\S+)", line):
                found.append(match.group(1))
                known.set()
        known.set()

    threading.Thread(target=read, daemon=True).start()
    try:
        known.wait(TIMEOUT_S)
        if not found:
            raise RuntimeError(f"{command}: no \"api URL\" line:\n" + "".join(lines)[-2000:])
        yield found[0]
    finally:
        process.send_signal(signal.SIGINT)
        try:
            process.wait(15)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)


@contextlib.contextmanager
def server():
    if url := os.environ.get("TROUPE_URL"):
        yield url.rstrip("/")
    elif command := os.environ.get("TROUPE_SERVE"):
        with started(command) as url:
            yield url
    else:
        from cluster import Cluster

        with Cluster(MODEL) as cluster:
            yield cluster.url


def differ(found, expected):
    return None if found == expected else f"{found!r}, expected {expected!r}"


class Client:
    def __init__(self, url):
        self.url = url
        self.api = openai.OpenAI(
            base_url=url + "/v1", api_key="none", timeout=TIMEOUT_S, max_retries=0
        )
        self.model = self.api.models.list().data[0].id

    def complete(self, **fields):
        fields = {"prompt": PROMPT, "temperature": 0, "max_tokens": 24} | fields
        return self.api.completions.create(model=self.model, **fields)

    def chat(self, text=QUESTION, **fields):
        fields = {"temperature": 0, "max_tokens": 200} | fields
        messages = fields.pop("messages", [{"role": "user", "content": text}])
        return self.api.chat.completions.create(model=self.model, messages=messages, **fields)

    def get(self, path):
        with urllib.request.urlopen(self.url + path, timeout=TIMEOUT_S) as answer:
            return answer.read().decode()

    def figure(self, name):
        found = re.search(rf"^troupe_{name} (\d+)$", self.get("/metrics"), re.MULTILINE)
        return int(found.group(1))

    def wait_idle(self):
        """None when nothing runs any more, neither in the server nor in the cluster."""
        deadline = time.monotonic() + IDLE_TIMEOUT_S
        names = ("sequences_active", "requests_waiting", "http_requests_in_flight")
        while time.monotonic() < deadline:
            figures = {name: self.figure(name) for name in names}
            if not any(figures.values()):
                return None
            time.sleep(0.05)
        return f"still at work after {IDLE_TIMEOUT_S} s: {figures}"


def text_of(stream):
    return "".join(chunk.choices[0].text for chunk in stream if chunk.choices)


# -- completions --


def completion_streams_the_same_text(c):
    whole = c.complete()
    streamed = text_of(c.complete(stream=True))
    if not whole.choices[0].text:
        return "the text is empty"
    return differ(streamed, whole.choices[0].text)


def completion_counts_its_tokens(c):
    whole = c.complete(max_tokens=7)
    usage, choice = whole.usage, whole.choices[0]
    if (choice.finish_reason, usage.completion_tokens) != ("length", 7):
        return f"{choice.finish_reason}, {usage}"
    if usage.prompt_tokens < 1 or usage.total_tokens != usage.prompt_tokens + 7:
        return str(usage)
    chunks = list(c.complete(max_tokens=7, stream=True, stream_options={"include_usage": True}))
    return differ(chunks[-1].usage, usage)


def prompt_of_tokens_is_the_same_prompt(c):
    tokens = [21, 300, 45, 7]
    text = c.complete(prompt=tokens).choices[0].text
    return differ(c.complete(prompt=[tokens]).choices[0].text, text)


def seed_gives_the_same_text_again(c):
    draw = lambda seed: c.complete(temperature=1, seed=seed, max_tokens=32).choices[0].text
    if draw(1) != draw(1):
        return "two answers with one seed differ"
    if len({draw(seed) for seed in range(4)}) == 1:
        return "four seeds give one text"
    return None


def requests_without_a_seed_differ(c):
    texts = {c.complete(temperature=1.5, max_tokens=32).choices[0].text for _ in range(4)}
    return None if len(texts) > 1 else "four requests give one text"


def stop_string_ends_the_text(c):
    text = c.complete(max_tokens=40).choices[0].text
    middle = len(text) // 2
    stop = text[middle : middle + 3]
    expected = text[: text.index(stop)]
    whole = c.complete(max_tokens=40, stop=stop)
    if whole.choices[0].finish_reason != "stop":
        return f"finish_reason {whole.choices[0].finish_reason}"
    streamed = text_of(c.complete(max_tokens=40, stop=["\x01", stop], stream=True))
    return differ((whole.choices[0].text, streamed), (expected, expected)) or c.wait_idle()


def logprobs_come_with_the_tokens(c):
    found = c.complete(max_tokens=5, logprobs=3).choices[0].logprobs
    if len(found.tokens) != 5 or len(found.token_logprobs) != 5:
        return str(found)
    for i in range(5):
        if found.token_logprobs[i] > 0 or len(found.top_logprobs[i]) != 3:
            return str(found)
        if found.tokens[i] not in found.top_logprobs[i]:
            return f"the greedy token {found.tokens[i]!r} is not among the three most likely"
    return None


# -- chat --


def chat_answers_a_question(c):
    message = c.chat(reasoning_effort="none").choices[0].message
    if message.role != "assistant" or "Paris" not in (message.content or ""):
        return str(message)
    return None


def chat_reasons_apart_from_its_content(c):
    choice = c.chat(reasoning_effort="high").choices[0]
    reasoning = getattr(choice.message, "reasoning_content", None)
    if not reasoning or "Paris" not in (choice.message.content or ""):
        return str(choice)
    if "<|" in reasoning + choice.message.content:
        return f"a special token is printed: {choice}"
    return differ(choice.finish_reason, "stop")


def chat_streams_the_same_answer(c):
    whole = c.chat().choices[0].message
    content = reasoning = ""
    for chunk in c.chat(stream=True):
        delta = chunk.choices[0].delta
        content += delta.content or ""
        reasoning += getattr(delta, "reasoning_content", None) or ""
    return differ(
        (content, reasoning), (whole.content, getattr(whole, "reasoning_content", None) or "")
    )


def chat_counts_its_reasoning(c):
    usage = c.chat().usage
    reasoning = usage.completion_tokens_details.reasoning_tokens
    return None if 0 < reasoning < usage.completion_tokens else str(usage)


def chat_calls_a_tool(c):
    whole = c.chat("What is the weather in Paris?", tools=[WEATHER]).choices[0]
    if whole.finish_reason != "tool_calls":
        return str(whole)
    call = whole.message.tool_calls[0]
    arguments = json.loads(call.function.arguments)
    if call.function.name != "get_weather" or "Paris" not in arguments.get("city", ""):
        return str(call)

    name, pieces, reason = None, "", None
    for chunk in c.chat("What is the weather in Paris?", tools=[WEATHER], stream=True):
        reason = chunk.choices[0].finish_reason or reason
        for delta in chunk.choices[0].delta.tool_calls or []:
            name = delta.function.name or name
            pieces += delta.function.arguments or ""
    return differ((name, pieces, reason), (call.function.name, call.function.arguments, "tool_calls"))


def chat_goes_on_after_a_tool(c):
    ask = {"role": "user", "content": "What is the weather in Paris?"}
    message = c.chat(messages=[ask], tools=[WEATHER]).choices[0].message
    result = {
        "role": "tool",
        "tool_call_id": message.tool_calls[0].id,
        "content": json.dumps({"weather": "sunny", "temperature": 21}),
    }
    # The client sends back all that it got, null members included.
    messages = [ask, message.model_dump(), result]
    final = c.chat(messages=messages, tools=[WEATHER]).choices[0]
    return None if final.message.content and not final.message.tool_calls else str(final)


# -- several at once, and clients that leave --


def requests_at_once_get_their_own_answers(c):
    prompts = [f"Chapter {i}. It was" for i in range(8)]
    alone = [c.complete(prompt=p, max_tokens=32).choices[0].text for p in prompts]
    with concurrent.futures.ThreadPoolExecutor(len(prompts)) as pool:
        streams = [
            pool.submit(lambda p=p: text_of(c.complete(prompt=p, max_tokens=32, stream=True)))
            for p in prompts
        ]
        together = [stream.result() for stream in streams]
    return differ(together, alone)


def closed_stream_frees_its_sequence(c):
    before = c.figure("http_canceled_total")
    with c.complete(max_tokens=1500, stream=True) as stream:
        next(iter(stream))
    return c.wait_idle() or differ(c.figure("http_canceled_total") > before, True)


def client_that_gives_up_frees_its_sequence(c):
    try:
        c.api.with_options(timeout=0.3).completions.create(
            model=c.model, prompt=PROMPT, temperature=0, max_tokens=1900
        )
    except openai.APITimeoutError:
        return c.wait_idle()
    return None  # this machine was faster than the client's patience


# -- troupe chat --


def run_chat(*arguments, text=""):
    return subprocess.run(
        [binary(), "chat", *arguments], input=text, capture_output=True, text=True,
        timeout=TIMEOUT_S, check=False,
    )  # fmt: skip


def chat_command_prints_the_answer(c):
    expected = c.chat(reasoning_effort="none").choices[0].message.content
    done = run_chat(
        "--url", c.url, "--once", QUESTION, "--temperature", "0", "--reasoning", "none"
    )  # fmt: skip
    return differ((done.returncode, done.stdout, done.stderr), (0, expected + "\n", ""))


def chat_command_remembers_the_conversation(c):
    first = c.chat(reasoning_effort="none").choices[0].message.content
    messages = [
        {"role": "user", "content": QUESTION},
        {"role": "assistant", "content": first},
        {"role": "user", "content": "And of Spain?"},
    ]
    second = c.chat(messages=messages, reasoning_effort="none").choices[0].message.content
    done = run_chat(
        "--url", c.url, "--temperature", "0", "--reasoning", "none",
        text=f"{QUESTION}\nAnd of Spain?\n",
    )  # fmt: skip
    return differ((done.returncode, done.stdout), (0, f"{first}\n{second}\n"))


def chat_command_says_what_is_wrong(c):
    nobody = run_chat("--url", "http://127.0.0.1:1", "--once", "a")
    if nobody.returncode != 1 or "no server answers at http://127.0.0.1:1" not in nobody.stderr:
        return str(nobody)
    refused = run_chat("--url", c.url, "--once", "a", "--max-tokens", "10000000")
    if refused.returncode != 1 or "max_tokens" not in refused.stderr or refused.stdout:
        return str(refused)
    return None


# -- what is refused --


def bad_requests_are_named(c):
    cases = [
        ("max_tokens", {"max_tokens": 0}),
        ("max_tokens", {"max_tokens": 10**8}),
        ("temperature", {"temperature": 3}),
        ("n", {"n": 2}),
        ("stop", {"stop": [""]}),
        ("prompt", {"prompt": ""}),
        ("prompt", {"prompt": [10**6]}),
        ("prompt", {"prompt": "word " * 200000}),
        ("nonsense", {"extra_body": {"nonsense": 1}}),
        ("presence_penalty", {"presence_penalty": 1}),
    ]
    for param, fields in cases:
        try:
            c.complete(**fields)
            return f"{fields} is accepted"
        except openai.BadRequestError as error:
            if error.param != param or not error.body["message"]:
                return f"{str(fields)[:60]}: {error}"
    try:
        c.chat(messages=[{"role": "king", "content": "a"}])
        return "a wrong role is accepted"
    except openai.BadRequestError as error:
        return differ(error.param, "messages[0].role")


def unknown_models_are_not_found(c):
    try:
        c.api.completions.create(model="gpt-none", prompt="a")
        return "another model's name is accepted"
    except openai.NotFoundError as error:
        return differ(error.code, "model_not_found")


def health_is_good(c):
    return differ(json.loads(c.get("/health"))["status"], "serving")


CHECKS = [
    completion_streams_the_same_text,
    completion_counts_its_tokens,
    prompt_of_tokens_is_the_same_prompt,
    seed_gives_the_same_text_again,
    requests_without_a_seed_differ,
    stop_string_ends_the_text,
    logprobs_come_with_the_tokens,
    chat_answers_a_question,
    chat_reasons_apart_from_its_content,
    chat_streams_the_same_answer,
    chat_counts_its_reasoning,
    chat_calls_a_tool,
    chat_goes_on_after_a_tool,
    requests_at_once_get_their_own_answers,
    closed_stream_frees_its_sequence,
    client_that_gives_up_frees_its_sequence,
    chat_command_prints_the_answer,
    chat_command_remembers_the_conversation,
    chat_command_says_what_is_wrong,
    bad_requests_are_named,
    unknown_models_are_not_found,
    health_is_good,
]


def main():
    tap = Tap()
    with server() as url:
        client = Client(url)
        for check in CHECKS:
            tap.check(check.__name__.replace("_", " "), lambda: check(client))
    tap.done()


main()
