// The list of requests: who runs, how far, and why the others wait.

import { keyOf } from "./block_group.js";
import { byId, element, setText, showList } from "./dom.js";
import { count } from "./format.js";
import { seatColour } from "./palette.js";
import { activity, nameOf } from "./words.js";

const MOST_ROWS = 24;

export class RequestList {
  #chosen = null;

  /** `onChoose()` is called when another request, or none, is chosen. */
  constructor(onChoose) {
    this.onChoose = onChoose;
    this.body = byId("requests").tBodies[0];
  }

  /** The key of the chosen request, or null. */
  get chosen() {
    return this.#chosen;
  }

  /** Show a snapshot's requests; `ownId` is that of the chat's answer in progress. */
  show(snapshot, ownId) {
    const all = [...snapshot.running, ...snapshot.waiting];
    if (!snapshot.running.some((request) => keyOf(request) === this.#chosen)) this.#chosen = null;
    byId("requests").hidden = all.length === 0;
    byId("no-requests").hidden = all.length > 0;
    const more = all.length - MOST_ROWS;
    byId("more-requests").hidden = more <= 0;
    setText(byId("more-requests"), `and ${count(more)} more`);
    setText(byId("requests-count"), all.length
      ? `${count(snapshot.running.length)} running, ${count(snapshot.waiting.length)} waiting` : "");
    const fill = (row, request) => this.#fill(row, request, snapshot, ownId);
    showList(this.body, all.slice(0, MOST_ROWS), keyOf, (request) => this.#make(request), fill);
  }

  #make(request) {
    const row = element("tr");
    const button = element("button", "name", element("span", "swatch"), element("span", "id"), element("span", "own"));
    button.type = "button";
    button.title = request.request_id;
    button.addEventListener("click", () => this.#choose(keyOf(request)));
    const bar = element("div", "bar", ...["cached", "prompt", "rest", "output"].map((kind) => element("span", kind)));
    row.append(cell("", button), cell("", bar));
    row.append(...["Prompt", "Output", "Blocks", ""].map((label) => cell(label)));
    row.lastElementChild.className = "doing";
    return row;
  }

  #fill(row, request, snapshot, ownId) {
    const [button, bar] = [row.cells[0].firstElementChild, row.cells[1].firstElementChild];
    const isRunning = request.seat !== null;
    row.classList.toggle("waits", !isRunning);
    row.style.setProperty("--seat", isRunning ? `var(${seatColour(request.seat)})` : "var(--muted)");
    button.setAttribute("aria-pressed", keyOf(request) === this.#chosen);
    button.disabled = !isRunning;
    setText(button.children[1], nameOf(request));
    setText(button.children[2], request.request_id === ownId ? "this chat" : "");
    fillBar(bar, request);
    const { num_prompt_tokens: prompt, num_cached_tokens: cached, num_output_tokens: output } = request;
    const computed = Math.min(request.num_computed_tokens, prompt);
    const progress = computed < prompt ? `${count(computed)} of ${count(prompt)}` : count(prompt);
    setText(row.cells[2], cached ? `${progress}, ${count(cached)} cached` : progress);
    setText(row.cells[3], `${count(output)} of ${count(request.max_tokens)}`);
    setText(row.cells[4], count(request.block_ids.reduce((sum, ids) => sum + ids.filter((id) => id >= 0).length, 0)));
    setText(row.cells[5], activity(request, snapshot));
  }

  #choose(key) {
    this.#chosen = this.#chosen === key ? null : key;
    this.onChoose();
  }
}

function cell(label, ...children) {
  const made = element("td", "", ...children);
  if (label) made.dataset.label = label;
  return made;
}

/** Give the parts of a bar their widths: shares of prompt and longest answer together. */
function fillBar(bar, request) {
  const { num_prompt_tokens: prompt, num_output_tokens: output, max_tokens: most } = request;
  const computed = Math.min(request.num_computed_tokens, prompt);
  const cached = Math.min(request.num_cached_tokens, computed);
  const parts = [cached, computed - cached, prompt - computed, output];
  const total = prompt + Math.max(most, output);
  parts.forEach((part, index) => {
    bar.children[index].style.width = `${(100 * part) / total}%`;
  });
  bar.style.setProperty("--prompt-end", `${(100 * prompt) / total}%`);
}
