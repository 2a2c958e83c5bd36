// The last minute, second by second, as small columns.

import { byId, element, setText, shape } from "./dom.js";
import { count, rate } from "./format.js";

const NUM_SECONDS = 60;
const HEIGHT = 40;

/** Per chart: title, what a column is, its value of a second, and what to say of the limit. */
const CHARTS = [
  ["Output", "tokens sampled a second", (second) => second.num_output_tokens],
  ["Work", "tokens computed a second, of prompts and answers", (second) => second.num_tokens],
  ["Batch", "requests in a step, mean", (second) => second.num_requests / second.num_steps],
  ["Queue", "requests waiting", (second) => second.num_waiting],
  ["Blocks", "blocks held by requests, most", (second) => second.num_used_blocks],
];

export class Charts {
  constructor() {
    this.charts = CHARTS.map(([title, words, valueOf]) => new Chart(title, words, valueOf));
    byId("charts").append(...this.charts.map((chart) => chart.root));
  }

  show(snapshot) {
    for (const chart of this.charts) chart.show(snapshot.last_minute);
  }
}

class Chart {
  #values = [];
  #pointed = null;

  constructor(title, words, valueOf) {
    this.valueOf = valueOf;
    this.title = title;
    this.words = words;
    this.number = element("output");
    this.drawing = shape("svg", { viewBox: `0 0 ${NUM_SECONDS} ${HEIGHT}`, preserveAspectRatio: "none", role: "img" });
    this.columns = Array.from({ length: NUM_SECONDS }, (_, index) => {
      const column = shape("rect", { x: index + 0.1, width: 0.8 });
      this.drawing.append(column);
      return column;
    });
    this.top = element("span", "top");
    const plot = element("div", "plot", this.drawing, this.top);
    this.root = element("figure", "chart", element("figcaption", "", element("b", "", title), this.number), plot,
      element("div", "axis", element("span", "", "60 s ago"), element("span", "", "now")), element("p", "note", words));
    plot.addEventListener("pointermove", (event) => this.#pointAt(event));
    plot.addEventListener("pointerleave", () => this.#pointAt(null));
  }

  /** Show seconds; the one that has not ended is left out. */
  show(seconds) {
    this.#values = Array(NUM_SECONDS).fill(0);
    for (const second of seconds) if (second.age >= 1) this.#values[NUM_SECONDS - second.age] = this.valueOf(second);
    const most = Math.max(...this.#values);
    this.columns.forEach((column, index) => {
      const value = this.#values[index];
      const height = value > 0 ? Math.max(1, (value / most) * HEIGHT) : 0;
      column.setAttribute("y", HEIGHT - height);
      column.setAttribute("height", height);
    });
    setText(this.top, most > 0 ? rate(most) : "");
    const last = this.#values.at(-1);
    this.drawing.setAttribute("aria-label", `${this.title}: ${this.words}; ${rate(last)} now, ${rate(most)} at most`);
    this.#tell();
  }

  #pointAt(event) {
    const share = event && event.offsetX / event.currentTarget.clientWidth;
    this.#pointed = event && Math.min(NUM_SECONDS - 1, Math.max(0, Math.floor(share * NUM_SECONDS)));
    this.columns.forEach((column, index) => column.classList.toggle("pointed", index === this.#pointed));
    this.#tell();
  }

  #tell() {
    const index = this.#pointed ?? NUM_SECONDS - 1;
    const when = this.#pointed === null ? "" : `${count(NUM_SECONDS - index)} s ago: `;
    setText(this.number, when + rate(this.#values[index] ?? 0));
  }
}
