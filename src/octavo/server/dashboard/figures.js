// Single numbers: the headline, the step's phases, latency, the cache.

import { byId, element, setText } from "./dom.js";
import { bytes, count, counted, percent, rate, seconds } from "./format.js";

/** Of a step: its field in a snapshot, its class, what it is. */
const PHASES = [
  ["schedule", "schedule", "who runs, with which blocks"],
  ["forward", "forward", "the model’s layers, for all at once"],
  ["sample", "sample", "logits, and choosing tokens"],
  ["output", "hand-out", "tokens to their requests"],
];
const LATENCIES = [
  ["queue", "Queue", "to a seat"],
  ["ttft", "TTFT", "to the first token"],
  ["itl", "ITL", "between two tokens"],
  ["e2e", "E2EL", "to the last token"],
];

/** Show all of them. */
export function showFigures(snapshot) {
  showHeadline(snapshot);
  showPhases(snapshot.last_minute);
  showLatencies(snapshot.latencies);
  showCache(snapshot);
}

function showHeadline(snapshot) {
  const { kv_cache: cache, latencies } = snapshot;
  const time = (view) => (view.num_values ? seconds(view.p50) : "–");
  setText(byId("tokens-per-s"), rate(snapshot.output_tokens_per_s));
  setText(byId("num-running"), `${count(snapshot.running.length)} of ${count(snapshot.max_num_seqs)}`);
  setText(byId("num-waiting"), count(snapshot.waiting.length));
  setText(byId("cache-use"), percent(cache.used_bytes / cache.capacity_bytes));
  setText(byId("hit-rate"), cache.num_queried_tokens ? percent(cache.hit_rate) : "–");
  setText(byId("ttft"), time(latencies.ttft));
  setText(byId("itl"), time(latencies.itl));
  setText(byId("num-preemptions"), count(snapshot.num_preemptions));
}

function showPhases(lastMinute) {
  const numSteps = lastMinute.reduce((sum, second) => sum + second.num_steps, 0);
  const sums = PHASES.map(([name]) => lastMinute.reduce((sum, second) => sum + second.phases[name], 0));
  const total = sums.reduce((sum, value) => sum + value, 0);
  const root = byId("phases");
  root.hidden = total === 0;
  byId("no-steps").hidden = total > 0;
  setText(byId("step-mean"), total ? `${seconds(total / numSteps)} a step` : "");
  if (!total) return;
  if (!root.firstElementChild) {
    const parts = PHASES.map(([, kind]) => element("span", kind));
    const rows = PHASES.map(([name, kind, words]) => element("tr", "", element("th", "", element("span", `key ${kind}`), name,
      element("span", "note", words)), element("td"), element("td")));
    root.append(element("div", "stack", ...parts), element("table", "plain", element("tbody", "", ...rows)));
  }
  const [stack, table] = root.children;
  sums.forEach((sum, index) => {
    stack.children[index].style.width = `${(100 * sum) / total}%`;
    setText(table.rows[index].cells[1], percent(sum / total));
    setText(table.rows[index].cells[2], seconds(sum / numSteps));
  });
}

function showLatencies(latencies) {
  const body = byId("latency").tBodies[0];
  if (!body.firstElementChild) {
    body.append(...LATENCIES.map(([, name, words]) => element("tr", "", element("th", "", name, element("span", "note", words)),
      element("td"), element("td"), element("td"))));
  }
  LATENCIES.forEach(([field], index) => {
    const view = latencies[field];
    ["p50", "p90", "p99"].forEach((share, column) => {
      setText(body.rows[index].cells[column + 1], view.num_values ? seconds(view[share]) : "–");
    });
  });
}

function showCache({ kv_cache: cache }) {
  const parts = [["used", cache.used_bytes], ["cached", cache.cached_bytes]];
  const bar = byId("cache-bar");
  if (!bar.firstElementChild) bar.append(...parts.map(([kind]) => element("span", kind)));
  parts.forEach(([, value], index) => {
    bar.children[index].style.width = `${(100 * value) / cache.capacity_bytes}%`;
  });
  const free = cache.capacity_bytes - cache.used_bytes - cache.cached_bytes;
  bar.setAttribute("aria-label", `${bytes(cache.used_bytes)} held by requests, ${bytes(cache.cached_bytes)} cached, ${bytes(free)} free`);
  showFacts([
    ["Held by requests", `${bytes(cache.used_bytes)} of ${bytes(cache.capacity_bytes)}`],
    ["Cached, unused", bytes(cache.cached_bytes)],
    ["Waste now", `${percent(cache.waste)}, ${counted(cache.num_empty_slots, "empty slot")}`],
    ["Waste since the start", percent(cache.mean_waste)],
    ["Saved by sharing now", counted(cache.num_saved_tokens, "token")],
    ["Prefix cache hits", `${count(cache.num_hit_tokens)} of ${counted(cache.num_queried_tokens, "token")}`],
    ["Evicted blocks", count(cache.num_evictions)],
    ["Most blocks in use", count(cache.peak_used_blocks)],
  ]);
}

function showFacts(facts) {
  const list = byId("cache-facts");
  if (!list.firstElementChild) list.append(...facts.map(([name]) => element("div", "", element("dt", "", name), element("dd"))));
  facts.forEach(([, value], index) => setText(list.children[index].lastElementChild, value));
}
