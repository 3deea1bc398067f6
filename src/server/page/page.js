// The chat page: one conversation, streamed, with what the engine says of every token and of itself. No library, no network but
// the server it came from.
"use strict";
const $ = (id) => document.getElementById(id);
const turns = [];          // the conversation as the API takes it
const colours = new Map(); // drafter -> number of its colour
let running = null;        // AbortController of the answer in the works

const headers = () => ($("key").value ? { Authorization: "Bearer " + $("key").value } : {});
const round = (x, digits = 1) => (Number.isFinite(x) ? x.toFixed(digits) : "–");

async function get(path) {
  const answer = await fetch(path, { headers: headers() });
  if (!answer.ok) throw new Error(await problem(answer));
  return answer.headers.get("content-type").startsWith("application/json") ? answer.json() : answer.text();
}

async function problem(answer) {
  try {
    return (await answer.json()).error.message;
  } catch {
    return answer.status + " " + answer.statusText;
  }
}

function made(tag, text, kind) {
  const out = document.createElement(tag);
  if (kind) out.className = kind;
  out.textContent = text;
  return out;
}

// ---- conversation

function addTurn(who) {
  const turn = document.createElement("article");
  turn.className = "turn";
  turn.innerHTML = '<h3></h3><div class="thought" hidden></div><div class="text"></div><div class="foot"></div>';
  turn.querySelector("h3").textContent = who;
  $("log").append(turn);
  return {
    text: turn.querySelector(".text"), thought: turn.querySelector(".thought"), foot: turn.querySelector(".foot"),
  };
}

function colourOf(drafter) {
  if (!colours.has(drafter)) {
    colours.set(drafter, colours.size % 6);
    if (colours.size === 1) $("legend").append("accepted guesses of ");
    $("legend").append(made("span", drafter, "g g" + colours.get(drafter)));
  }
  return "g g" + colours.get(drafter);
}

// Neighbours of one colour share an element: a long answer stays a small page.
function append(place, text, drafter) {
  if (!text) return;
  const kind = drafter ? colourOf(drafter) : "";
  const last = place.lastElementChild;
  if (last && last.className === kind) {
    last.textContent += text;
    return;
  }
  const span = made("span", text, kind);
  if (drafter) span.title = "guessed by " + drafter + ", checked by the model";
  place.append(span);
}

function show(place, choice) {
  const delta = choice.delta || {};
  if (delta.reasoning_content) {
    place.thought.hidden = false;
    append(place.thought, delta.reasoning_content);
  }
  const sources = choice.token_sources;
  if (!delta.content) return;
  const pieces = Array.isArray(sources) ? sources : [];
  if (pieces.map((one) => one.text).join("") === delta.content) for (const one of pieces) append(place.text, one.text, one.drafter);
  else append(place.text, delta.content, pieces.length && pieces.every((one) => one.drafter) ? pieces[0].drafter : null);
}

// Server-sent events of a fetch: yields the data of each.
async function* events(answer) {
  const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    const parts = (rest + value).split("\n\n");
    rest = parts.pop();
    for (const part of parts) if (part.startsWith("data: ")) yield part.slice(6);
  }
}

async function ask(question) {
  turns.push({ role: "user", content: question });
  addTurn("You").text.textContent = question;
  const place = addTurn("Model");
  place.text.classList.add("pending");
  busy(true);
  running = new AbortController();
  let said = "", last = null;
  try {
    const system = $("system").value.trim();
    const body = {
      model: $("model").value || undefined,
      messages: system ? [{ role: "system", content: system }, ...turns] : turns,
      temperature: Number($("temperature").value), max_tokens: Number($("tokens").value),
      stream: true, stream_options: { include_usage: true }, return_token_sources: true, timings_per_token: false,
    };
    if ($("method").value) body.speculative_config = { method: $("method").value };
    const answer = await fetch("v1/chat/completions", {
      method: "POST", body: JSON.stringify(body), signal: running.signal,
      headers: { "Content-Type": "application/json", ...headers() },
    });
    if (!answer.ok) throw new Error(await problem(answer));
    for await (const data of events(answer)) {
      if (data === "[DONE]") break;
      const chunk = JSON.parse(data);
      if (chunk.error) throw new Error(chunk.error.message);
      const atEnd = $("log").scrollHeight - $("log").scrollTop - $("log").clientHeight < 60;
      for (const choice of chunk.choices) {
        show(place, choice);
        said += (choice.delta && choice.delta.content) || "";
      }
      if (atEnd) $("log").scrollTop = $("log").scrollHeight;
      if (chunk.usage || chunk.timings || chunk.metrics) last = { ...last, ...chunk };
    }
  } catch (error) {
    place.text.after(made("p", error.name === "AbortError" ? "stopped" : error.message, "wrong"));
  }
  turns.push({ role: "assistant", content: said });
  place.text.classList.remove("pending");
  if (last) report(last, place.foot);
  running = null;
  busy(false);
  $("prompt").focus();
}

function busy(on) {
  $("send").disabled = on;
  $("stop").disabled = !on;
}

// ---- what the engine did

function svg(height, inner) {
  return `<svg viewBox="0 0 300 ${height}" aria-hidden="true">${inner}</svg>`;
}
function draw(id, words, picture) {
  $(id).innerHTML = picture;
  $(id).setAttribute("aria-label", words);
}
function bars(rows, most, unit) {
  return svg(rows.length * 24, rows.map(([name, value, colour], i) => {
    const width = most > 0 ? Math.max(1, (170 * value) / most) : 1;
    return `<text x="0" y="${i * 24 + 15}">${name}</text><rect x="60" y="${i * 24 + 4}" width="${width}" height="15" fill="var(${colour})" rx="2"/>` +
      `<text x="${64 + width}" y="${i * 24 + 15}" class="faint">${round(value)}${unit}</text>`;
  }).join(""));
}

function report(chunk, foot) {
  const timings = chunk.timings || {}, metrics = chunk.metrics || {}, guesses = metrics.speculative_decoding;
  const speed = timings.predicted_per_second, plain = metrics.plain_tokens_per_second;
  const kept = guesses && guesses.num_draft_tokens > 0 ? guesses.num_accepted_draft_tokens / guesses.num_draft_tokens : NaN;
  if (chunk.usage)
    foot.textContent = `${chunk.usage.completion_tokens} tokens, ${round(speed)} tokens/s` +
      (Number.isFinite(kept) ? `, ${round(100 * kept, 0)} % of ${guesses.num_draft_tokens} guesses kept` : "") +
      (metrics.lossless === false ? ", NOT lossless" : "");
  const rows = [["now", speed || 0, "--bar"]];
  if (plain) rows.push(["plain", plain, "--bar2"]);
  draw("speed", `${round(speed)} tokens per second` + (plain ? `, plain decoding ${round(plain)}` : ""), bars(rows, Math.max(speed || 0, plain || 0), " /s") +
    (plain && speed ? `<p>${round(speed / plain, 2)} times plain decoding, as this engine measures it</p>` : ""));
  const split = metrics.time_ms || {};
  const parts = ["prefill", "draft", "verify", "select"].filter((name) => split[name] > 0).map((name) => [name, split[name], "--bar"]);
  if (parts.length) draw("split", parts.map(([name, ms]) => `${name} ${round(ms, 0)} milliseconds`).join(", "), bars(parts, Math.max(...parts.map((p) => p[1])), " ms"));
  const positions = metrics.acceptance_by_position || [];
  if (positions.length)
    draw("acceptance", positions.map((x, i) => `position ${i + 1}: ${round(100 * x, 0)} per cent`).join(", "), svg(90,
      positions.map((x, i) => {
        const width = 300 / positions.length, height = 70 * x;
        return `<rect x="${i * width + 1}" y="${75 - height}" width="${Math.max(1, width - 3)}" height="${height}" fill="var(--bar)"/>` +
          (positions.length <= 16 ? `<text class="faint" x="${i * width + width / 2}" y="88" text-anchor="middle">${i + 1}</text>` : "");
      }).join("")));
}

// A sum over the samples of one metric.
function metric(text, name) {
  let sum = NaN;
  for (const line of text.split("\n"))
    if (line.startsWith(name + "{") || line.startsWith(name + " ")) sum = (Number.isNaN(sum) ? 0 : sum) + Number(line.slice(line.lastIndexOf(" ")));
  return sum;
}

async function watch() {
  if (!document.hidden) {
    try {
      const text = await get("metrics");
      const of = (name) => metric(text, name);
      const rows = [
        ["running", of("vllm:num_requests_running")], ["waiting", of("vllm:num_requests_waiting")],
        ["cache used", round(100 * of("vllm:kv_cache_usage_perc"), 0) + " %"],
        ["prefix hits", round((100 * of("vllm:prefix_cache_hits_total")) / of("vllm:prefix_cache_queries_total"), 0) + " %"],
        ["tokens written", of("vllm:generation_tokens_total")],
        ["guesses kept", round((100 * of("vllm:spec_decode_num_accepted_tokens_total")) / of("vllm:spec_decode_num_draft_tokens_total"), 0) + " %"],
        ["preempted", of("vllm:num_preemptions_total")],
      ];
      $("engine").replaceChildren(...rows.flatMap(([name, value]) =>
        [made("dt", name), made("dd", typeof value === "number" && Number.isNaN(value) ? "–" : value)]));
    } catch {
      // the next look may succeed; the status line says when the server is gone
    }
  }
  setTimeout(watch, 2000);
}

async function start() {
  try {
    const models = (await get("v1/models")).data;
    $("model").replaceChildren(...models.map((model) => new Option(model.id)));
    const props = await get("props").catch(() => ({}));
    const methods = ["auto", "none", "self", "ngram", "suffix", ...((props.speculation || {}).drafters || [])];
    $("method").replaceChildren(new Option("as the server says", ""), ...methods.map((name) => new Option(name)));
    $("about").textContent = props.engine || models.map((model) => model.id).join(", ");
  } catch (error) {
    $("about").textContent = error.message + ($("key").value ? "" : " (Settings has a field for the API key)");
  }
}

$("form").addEventListener("submit", (event) => {
  event.preventDefault();
  const question = $("prompt").value.trim();
  if (!question || running) return;
  $("prompt").value = "";
  ask(question);
});
$("prompt").addEventListener("keydown", (event) => {
  if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
    event.preventDefault();
    $("form").requestSubmit();
  }
});
document.addEventListener("keydown", (event) => event.key === "Escape" && running && running.abort());
$("stop").addEventListener("click", () => running && running.abort());
$("clear").addEventListener("click", () => {
  if (running) running.abort();
  turns.length = 0;
  $("log").replaceChildren();
  $("prompt").focus();
});
$("key").addEventListener("change", start);
start();
watch();
