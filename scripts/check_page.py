#!/usr/bin/env python3
"""Uses the server's page as a person would, in a headless Chromium, and says what went wrong.

    check_page.py URL [--chromedriver PROGRAM] [--screenshots FOLDER]

The server must run an instruct model and have no other clients meanwhile. Needs Chromium and its driver (Debian: chromium,
chromium-driver); the driver speaks WebDriver over HTTP, so nothing else is needed. Exit code 0 if all is well.
"""

import argparse
import base64
import contextlib
import json
import os
import pathlib
import re
import subprocess
import sys
import time
import urllib.error
import urllib.request

LONG_ENOUGH = 120.0  # seconds, for an answer of a small model on a slow machine
ELEMENT = "element-6066-11e4-a52e-4f735466cecf"  # the name of an element's id in WebDriver's answers
ENTER, SHIFT, RELEASE = "\ue007", "\ue008", "\ue000"
MARKUP = "<img src=x onerror=\"window.broken = true\"><script>window.broken = true</script>"


class Browser:
    """One window, led by the driver at `address`."""

    def __init__(self, address, width, height, scheme="light"):
        arguments = ["--headless=new", f"--window-size={width},{height}", "--disable-gpu", "--disable-dev-shm-usage"]
        if os.geteuid() == 0:
            arguments.append("--no-sandbox")
        if scheme == "dark":
            arguments.append("--force-dark-mode")
        capabilities = {
            "browserName": "chrome",
            "goog:chromeOptions": {"args": arguments},
            "goog:loggingPrefs": {"browser": "ALL"},
        }
        self.address = address
        session = self.call("POST", "/session", {"capabilities": {"alwaysMatch": capabilities}})
        self.session = f"/session/{session['sessionId']}"
        # The browser's window is larger than the page in it, and has a least width of its own.
        metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        self.devtools("Emulation.setDeviceMetricsOverride", metrics)
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        self.devtools("Emulation.setEmulatedMedia", {"features": features})

    def call(self, method, path, body=None):
        data = None if body is None else json.dumps(body).encode()
        headers = {"Content-Type": "application/json"}
        request = urllib.request.Request(self.address + path, data, headers, method=method)
        try:
            with urllib.request.urlopen(request, timeout=60) as answer:
                return json.load(answer)["value"]
        except urllib.error.HTTPError as error:
            raise SystemExit(f"{method} {path}: {error.read().decode()[:600]}") from error

    def devtools(self, command, params):
        return self.call("POST", self.session + "/goog/cdp/execute", {"cmd": command, "params": params})

    def open(self, url):
        self.call("POST", self.session + "/url", {"url": url})

    def script(self, text, *arguments):
        return self.call("POST", self.session + "/execute/sync", {"script": text, "args": list(arguments)})

    def element(self, css):
        found = self.call("POST", self.session + "/element", {"using": "css selector", "value": css})
        return f"{self.session}/element/{found[ELEMENT]}"

    def type(self, css, text):
        self.call("POST", self.element(css) + "/value", {"text": text})

    def replace(self, css, text):
        self.call("POST", self.element(css) + "/clear", {})
        if text:
            self.type(css, text)

    def click(self, css):
        self.call("POST", self.element(css) + "/click", {})

    def complaints(self):
        """What the console says since the last look: errors, and refusals of the page's policy."""
        entries = self.call("POST", self.session + "/se/log", {"type": "browser"})
        messages = [entry["message"] for entry in entries if entry["level"] in ("SEVERE", "WARNING")]
        # The page asks for the metrics, which a server need not tell. The browser tells of every refused request.
        return [text for text in messages if "/metrics - Failed to load resource" not in text]

    def screenshot(self, file):
        file.write_bytes(base64.b64decode(self.call("GET", self.session + "/screenshot")))

    def close(self):
        self.call("DELETE", self.session)


class Check:
    """The page in a browser, and what it shows."""

    def __init__(self, browser):
        self.browser = browser

    def until(self, what, condition, seconds=LONG_ENOUGH):
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            found = condition()
            if found:
                return found
            time.sleep(0.02)
        raise SystemExit(f"waited {seconds:.0f} s in vain until {what}; the page shows:\n{self.shown('body')}")

    def shown(self, css):
        return self.browser.script("return document.querySelector(arguments[0])?.innerText ?? ''", css)

    def texts(self, css):
        return self.browser.script("return [...document.querySelectorAll(arguments[0])].map((e) => e.textContent)", css)

    def done(self):
        return self.browser.script(
            "return document.getElementById('stop').hidden && !document.querySelector('[aria-busy=true]')"
        )

    def say(self, text):
        """Says it and waits for the whole answer: its text and its figures."""
        before = len(self.texts(".theirs"))
        self.browser.type("#message", text + ENTER)
        self.until("an answer begins", lambda: len(self.texts(".theirs")) == before + 1)
        self.until("the answer is complete", self.done)
        return self.texts(".theirs .text")[-1], self.texts(".theirs .figures")[-1]

    def settings(self, **values):
        self.browser.script("document.getElementById('settings').open = true")
        for name, value in values.items():
            self.browser.replace("#" + name.replace("_", "-"), value)


def expect(condition, message):
    if not condition:
        raise SystemExit(message)


def check_two_turns(check):
    """An answer grows on the page, and the next one reuses what the first computed."""
    check.until("the server is ready", lambda: "ready" in check.shown("#health"))
    check.until("slots are counted", lambda: re.search(r"^0 of \d+ slots busy", check.shown("#slots")))
    # The number makes the prompt one that the server has not seen, however often this runs.
    system = f"Story number {time.time_ns()}. " + "You tell long stories about a boat. " * 12
    check.settings(system=system, temperature="0.7", seed="7", max_tokens="40")
    check.browser.type("#message", "Tell me one." + SHIFT + ENTER + RELEASE + "Please.")
    expect(check.texts(".mine") == [], "Shift+Enter has sent the message")
    # A fast server is done before this script could look twice.
    check.browser.script("""
        window.lengths = new Set();
        const look = () => window.lengths.add(document.querySelector('.theirs .text')?.textContent.length ?? 0);
        new MutationObserver(look).observe(document.getElementById('log'), {childList: true, characterData: true, subtree: true});
    """)
    check.browser.type("#message", ENTER)
    check.until("the answer is complete", lambda: check.texts(".theirs") and check.done())
    lengths = check.browser.script("return [...window.lengths]")
    expect(len(lengths) > 4, f"the answer did not grow: lengths {lengths}")
    expect(check.texts(".mine .text") == ["Tell me one.\nPlease."], f"sent: {check.texts('.mine .text')}")
    figures = check.texts(".theirs .figures")[0]
    pattern = r"(\d+) prompt tokens.*KV: computed, 0 of \1 tokens reused.*first token after [\d.]+ s(\d+) tokens at [\d.]+ tokens/s"
    counted = re.search(pattern, figures)
    expect(counted, f"figures of the first answer: {figures}")
    first = check.texts(".theirs .text")[0]

    text, figures = check.say("Go on.")
    reused = re.search(r"KV: local, (\d+) of (\d+) tokens reused", figures)
    expect(text and reused and int(reused[1]) > 0, f"the second answer reuses nothing: {figures}")
    said = int(counted[1]) + int(counted[2])
    expect(int(reused[2]) > said, f"the second prompt does not hold what was said before, {said} tokens: {figures}")

    check.browser.click("#new")
    expect(check.texts("article") == [], "a new conversation shows the old one")
    text, _ = check.say("Tell me one." + SHIFT + ENTER + RELEASE + "Please.")
    expect(text == first, f"the same seed gave another text: {text!r} and {first!r}")


def check_stop(check):
    """Stop ends an answer, and the engine's work on it."""
    check.settings(max_tokens="")
    for seed in range(1, 9):
        check.browser.click("#new")
        check.settings(seed=str(seed))
        check.browser.type("#message", "Tell me a very long story." + ENTER)
        check.until("text appears", lambda: "".join(check.texts(".theirs .text")) or check.done())
        # An answer may be complete already; another seed says more.
        stopped = check.browser.script(
            "const stop = document.getElementById('stop'); if (stop.hidden) return false; stop.click(); return true"
        )
        check.until("the answer has ended", check.done)
        if stopped and "stopped" in check.texts(".theirs .figures")[-1]:
            break
    else:
        raise SystemExit("no answer was long enough to be stopped")
    text = check.texts(".theirs .text")[-1]
    check.until("no slot is busy", lambda: check.shown("#slots").startswith("0 of"), 10)
    expect(check.texts(".theirs .text")[-1] == text, "the answer grew after it was stopped")


def check_markup(check):
    """What is typed stays text, and what would be markup is stopped by the policy."""
    check.browser.click("#new")
    check.settings(max_tokens="4")
    check.say(MARKUP)
    expect(check.texts(".mine .text") == [MARKUP], f"the message became {check.texts('.mine .text')}")
    expect(check.texts("#log img, #log script") == [], "the message became elements")
    expect(check.browser.script("return window.broken === undefined"), "the message was run")
    expect(check.browser.complaints() == [], "the console complains about a message")
    # Even if a text became markup one day: nothing in it may run. This also shows that the console is listened to.
    check.browser.script("document.getElementById('log').insertAdjacentHTML('beforeend', arguments[0])", MARKUP)
    # The image is not found, either before or after that is told.
    heard = []

    def told():
        heard.extend(check.browser.complaints())
        return all(any(word in complaint for complaint in heard) for word in ("Content Security Policy", "404"))

    check.until("the policy refuses a handler", told, 10)
    expect(check.browser.script("return window.broken === undefined"), "the policy let a handler run")


def check_refusal(check):
    """What the server refuses is said in its words, and the message can be sent again."""
    check.browser.click("#new")
    check.settings(max_tokens="4", temperature="1e39")
    check.say("Hello.")
    expect("temperature" in check.shown(".error"), f"the refusal is shown as {check.shown('.error')!r}")
    expect(check.browser.script("return document.getElementById('message').value") == "Hello.", "the message is gone")
    # The browser itself tells of every response that is no success.
    expect(all("400" in complaint for complaint in check.browser.complaints()), "the console complains")
    check.settings(temperature="")
    text, figures = check.say("")
    expect(figures, f"no answer after a refusal: {text!r}")


@contextlib.contextmanager
def driver(program):
    """The driver on a port that it chooses."""
    process = subprocess.Popen([program, "--port=0"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    try:
        port = next((found[1] for line in process.stdout if (found := re.search(r"on port (\d+)\.", line))), None)
        if port is None:
            raise SystemExit(f"{program} has ended without a port")
        yield f"http://127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait(timeout=20)


def take_screenshots(address, url, folder):
    """The page with an answer, wide and narrow, light and dark."""
    folder.mkdir(parents=True, exist_ok=True)
    for scheme in ("light", "dark"):
        for name, width, height in (("wide", 1100, 760), ("narrow", 390, 760)):
            browser = Browser(address, width, height, scheme)
            browser.open(url)
            check = Check(browser)
            check.until("the server is ready", lambda check=check: "slots" in check.shown("#slots"))
            check.settings(seed="7", max_tokens="60")
            browser.script("document.getElementById('settings').open = false")
            check.say("Tell me a story about a boat.")
            check.say("And then?")
            browser.screenshot(folder / f"{scheme}-{name}.png")
            check.settings()
            browser.screenshot(folder / f"{scheme}-{name}-settings.png")
            browser.close()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("url")
    parser.add_argument("--chromedriver", default="chromedriver")
    parser.add_argument("--screenshots", type=pathlib.Path)
    arguments = parser.parse_args()
    with driver(arguments.chromedriver) as address:
        browser = Browser(address, 1100, 760)
        browser.open(arguments.url)
        check = Check(browser)
        for part in (check_two_turns, check_stop, check_markup, check_refusal):
            began = time.monotonic()
            part(check)
            complaints = browser.complaints()
            expect(complaints == [], f"{part.__name__}: the console says {complaints}")
            print(f"{part.__name__}: {time.monotonic() - began:.1f} s", flush=True)
        browser.close()
        if arguments.screenshots:
            take_screenshots(address, arguments.url, arguments.screenshots)
    print("the page works")


if __name__ == "__main__":
    sys.exit(main())
