// The page's behaviour: a conversation over /v1/chat/completions, and the engine's state beside it.
//
// Text of the model and of the user becomes text nodes only, never markup. Nothing is stored but the API key, and that for
// as long as the tab lives. Addresses are relative, so that the page also works behind a proxy that adds a path.

const POLL_MS = 1500;
const KEY_NAME = "muser-api-key";

const at = (id) => document.getElementById(id);
const log = at("log");
const message = at("message");

/** The conversation as the server is told it: the system prompt comes first when it is sent. */
let messages = [];
/** The answer under way, if there is one: what aborts it. */
let running = null;

// ---- The server

/** A request's headers: the key if there is one. */
function headers(more) {
  const key = sessionStorage.getItem(KEY_NAME);
  return key ? { ...more, Authorization: `Bearer ${key}` } : { ...more };
}

/** A refusal of the server, with its own words. */
class Refusal extends Error {
  constructor(status, text) {
    super(text);
    this.status = status;
  }
}

/** The response, if the server took the request; shows the field for a key if it wants one. */
async function request(path, options = {}) {
  const response = await fetch(path, { ...options, headers: headers(options.headers), cache: "no-store" });
  if (response.ok) return response;
  if (response.status === 401) askForKey();
  const body = await response.text();
  let text = body.slice(0, 500) || response.statusText;
  try {
    text = JSON.parse(body).error.message;
  } catch {
    // Not this server's own words: something on the way has answered.
  }
  throw new Refusal(response.status, `${text} (${response.status})`);
}

/** The data of a stream's events, as they come. */
async function* events(response) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    const lines = (rest + value).split("\n");
    rest = lines.pop();
    for (const line of lines) {
      if (line.startsWith("data:")) yield line.slice(5).trim();
    }
  }
}

// ---- The conversation

function element(tag, name, text = "") {
  const made = document.createElement(tag);
  if (name) made.className = name;
  made.textContent = text;
  return made;
}

/** Adds who speaks and an empty text to the log. */
function addTurn(who, name) {
  at("empty").hidden = true;
  const turn = element("article", name);
  const text = element("div", "text");
  turn.append(element("h2", "", who), text);
  log.append(turn);
  return { turn, text };
}

/** Does something that makes the log longer, and stays at its end if the reader is there. */
function whileFollowing(change) {
  const following = log.scrollHeight - log.scrollTop - log.clientHeight < 80;
  change();
  if (following) log.scrollTop = log.scrollHeight;
}

/** What the settings say, where they say something. */
function settings() {
  const found = {};
  for (const [id, name] of [["temperature", "temperature"], ["seed", "seed"], ["max-tokens", "max_tokens"]]) {
    if (at(id).value !== "") found[name] = Number(at(id).value);
  }
  return found;
}

/** Sends what is written, and shows the answer as it comes. */
async function send() {
  const content = message.value;
  if (running || content.trim() === "") return;
  for (const field of at("settings").querySelectorAll("input")) {
    if (!field.checkValidity()) {
      at("settings").open = true;
      field.reportValidity();
      return;
    }
  }
  const abort = new AbortController();
  setRunning(abort);
  message.value = "";
  fitMessage();
  const mine = addTurn("You", "mine");
  mine.text.textContent = content;
  const answer = newAnswer();
  log.scrollTop = log.scrollHeight;

  const system = at("system").value.trim() === "" ? [] : [{ role: "system", content: at("system").value }];
  const asked = [...messages, { role: "user", content }];
  try {
    await listen(answer, abort.signal, [...system, ...asked]);
    answer.end("");
  } catch (error) {
    if (running !== abort) return;
    if (abort.signal.aborted) {
      answer.end("stopped");
    } else {
      const text = error instanceof TypeError ? `The server cannot be reached: ${error.message}` : error.message;
      answer.fail(text);
    }
  }
  // A new conversation has begun meanwhile: this answer belongs to none.
  if (running !== abort) return;
  if (answer.content() !== "") {
    messages = [...asked, { role: "assistant", content: answer.content() }];
  } else if (message.value === "") {
    // Without an answer nothing was said: it can be said again.
    message.value = content;
    fitMessage();
  }
  setRunning(null);
  poll();
}

/** Asks for an answer and tells `answer` all that comes. */
async function listen(answer, signal, asked) {
  const body = {
    messages: asked,
    stream: true,
    stream_options: { include_usage: true },
    return_progress: true,
    timings_per_token: true,
    ...settings(),
  };
  const options = { method: "POST", body: JSON.stringify(body), signal, headers: { "Content-Type": "application/json" } };
  const response = await request("v1/chat/completions", options);
  for await (const data of events(response)) {
    if (data === "[DONE]") return;
    const chunk = JSON.parse(data);
    if (chunk.error) throw new Refusal(chunk.error.code, `${chunk.error.message} (${chunk.error.code})`);
    answer.take(chunk);
  }
  throw new Error("The connection ended before the answer did.");
}

/** An answer in the log: its text, and the line of figures below. */
function newAnswer() {
  const { turn, text } = addTurn("Model", "theirs");
  const figures = element("p", "figures");
  turn.append(figures);
  turn.setAttribute("aria-busy", "true");
  const node = text.appendChild(document.createTextNode(""));
  const began = performance.now();
  const known = { firstMs: null, progress: null, timings: null, usage: null, finish: null };
  const show = (parts) => figures.replaceChildren(...parts.map((part) => element("span", "", part)));
  const end = (how) => {
    turn.setAttribute("aria-busy", "false");
    whileFollowing(() => show(figuresOf(known, how)));
    at("news").textContent = how === "" ? "The answer is complete." : `The answer has ${how}.`;
  };
  show(["waiting"]);
  return {
    content: () => node.data,
    take(chunk) {
      const choice = chunk.choices[0];
      known.progress = chunk.prompt_progress ?? known.progress;
      known.timings = chunk.timings ?? known.timings;
      known.usage = chunk.usage ?? known.usage;
      known.finish = choice?.finish_reason ?? known.finish;
      const piece = choice?.delta?.content ?? "";
      if (piece !== "") known.firstMs ??= performance.now() - began;
      whileFollowing(() => {
        node.appendData(piece);
        show(figuresOf(known, ""));
      });
    },
    end,
    fail(reason) {
      const shown = element("p", "error", reason);
      shown.setAttribute("role", "alert");
      turn.append(shown);
      end("failed");
      log.scrollTop = log.scrollHeight;
    },
  };
}

/** The figures that are known, each in its words. */
function figuresOf({ firstMs, progress, timings, usage, finish }, how) {
  const parts = [];
  const prompt = usage?.prompt_tokens ?? progress?.total ?? (timings ? timings.cache_n + timings.prompt_n : null);
  const reused = usage?.prompt_tokens_details?.cached_tokens ?? timings?.cache_n ?? progress?.cache ?? 0;
  if (prompt !== null) {
    parts.push(`${prompt} prompt tokens`);
    parts.push(`KV: ${reused > 0 ? "local" : "computed"}, ${reused} of ${prompt} tokens reused`);
  }
  if (firstMs !== null) {
    parts.push(`first token after ${(firstMs / 1000).toFixed(2)} s`);
  } else if (progress) {
    parts.push(`reading the prompt: ${progress.processed} of ${progress.total}`);
  }
  if (timings && timings.predicted_n > 0) {
    const speed = timings.predicted_per_second > 0 ? ` at ${timings.predicted_per_second.toFixed(1)} tokens/s` : "";
    parts.push(`${timings.predicted_n} tokens${speed}`);
  }
  if (how !== "") parts.push(how);
  if (finish === "length") parts.push("cut at the limit of tokens");
  return parts;
}

function setRunning(abort) {
  const hadFocus = document.activeElement === at("stop") || document.activeElement === at("send");
  running = abort;
  at("send").hidden = abort !== null;
  at("stop").hidden = abort === null;
  if (hadFocus) message.focus();
}

function newConversation() {
  running?.abort();
  setRunning(null);
  messages = [];
  log.replaceChildren(at("empty"));
  at("empty").hidden = false;
  at("news").textContent = "A new conversation.";
  message.focus();
}

/** Makes the field as high as what is written, up to the limit of the style sheet. */
function fitMessage() {
  message.style.height = "auto";
  message.style.height = `${message.scrollHeight + 2}px`;
}

// ---- The state of the engine

let timer = null;
/** What the server does not tell this page, or not with this key: asking once is enough. */
const untold = new Set();
let knowsModel = false;

/** Shows the state, now and again after a while, as long as somebody can see it. */
async function poll() {
  clearTimeout(timer);
  if (document.hidden) return;
  try {
    const health = await fetch("health", { cache: "no-store", signal: AbortSignal.timeout(5000) });
    if (health.ok) {
      setHealth("good", "ready");
      await showEngine();
    } else {
      const loading = health.status === 503;
      setHealth(loading ? "unknown" : "bad", loading ? "not ready" : `failed (${health.status})`);
    }
  } catch (error) {
    // A refusal is about a detail, and the server is there.
    if (!(error instanceof Refusal)) setHealth("bad", "unreachable");
  }
  clearTimeout(timer);
  timer = setTimeout(poll, POLL_MS);
}

function setHealth(level, words) {
  at("health").dataset.level = level;
  at("health").textContent = words;
  if (level !== "good") at("slots").textContent = at("memory").textContent = "";
}

async function showEngine() {
  if (!at("key-form").hidden) return;
  if (!knowsModel) await showModel();
  const slots = await (await told("slots"))?.json();
  const metrics = readMetrics(await (await told("metrics"))?.text());
  const parts = [];
  if (slots) parts.push(`${slots.filter((slot) => slot.is_processing).length} of ${slots.length} slots busy`);
  const waiting = metrics.get("llamacpp:requests_deferred");
  if (waiting !== undefined) parts.push(`${waiting} waiting`);
  at("slots").textContent = parts.join(", ");
  const [used, budget] = ["muser:kv_live_bytes", "muser:kv_budget_bytes"].map((name) => metrics.get(name));
  at("memory").textContent = used === undefined ? "" : `KV ${mebibytes(used)} of ${mebibytes(budget)}`;
}

/** The response, or nothing where the server does not tell it. */
async function told(path) {
  if (untold.has(path)) return null;
  try {
    return await request(path);
  } catch (error) {
    if (!(error instanceof Refusal) || error.status === 401) throw error;
    if ([403, 404, 501].includes(error.status)) untold.add(path);
    return null;
  }
}

/** The values without labels. */
function readMetrics(text = "") {
  const pairs = text.split("\n").map((line) => line.match(/^([a-z_:]+) (\S+)/i)).filter(Boolean);
  return new Map(pairs.map(([, name, value]) => [name, Number(value)]));
}

/** The model's name, and what holds where the settings say nothing. */
async function showModel() {
  const models = await (await request("v1/models")).json();
  at("model").textContent = models.data[0].id;
  const params = (await (await told("props"))?.json())?.default_generation_settings.params;
  if (params) {
    at("temperature").placeholder = String(Number(params.temperature.toPrecision(3)));
    at("max-tokens").placeholder = params.n_predict < 0 ? "no limit" : String(params.n_predict);
  }
  knowsModel = true;
}

function mebibytes(bytes) {
  return `${(bytes / 2 ** 20).toFixed(bytes < 100 * 2 ** 20 ? 1 : 0)} MiB`;
}

function askForKey() {
  sessionStorage.removeItem(KEY_NAME);
  if (!at("key-form").hidden) return;
  at("key-form").hidden = false;
  at("key").focus();
}

// ---- What the user does

at("composer").addEventListener("submit", (event) => {
  event.preventDefault();
  send();
});

message.addEventListener("keydown", (event) => {
  // While an input method composes a character, Enter belongs to it.
  if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
    event.preventDefault();
    send();
  }
});

message.addEventListener("input", fitMessage);

document.addEventListener("keydown", (event) => {
  if (event.key === "Escape" && !event.isComposing) running?.abort();
});

at("stop").addEventListener("click", () => running?.abort());

at("new").addEventListener("click", newConversation);

at("key-form").addEventListener("submit", (event) => {
  event.preventDefault();
  sessionStorage.setItem(KEY_NAME, at("key").value);
  at("key").value = "";
  at("key-form").hidden = true;
  untold.clear();
  message.focus();
  poll();
});

document.addEventListener("visibilitychange", poll);

poll();
