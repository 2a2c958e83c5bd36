// Draws the blocks of one cache group on a canvas, and tells about the one that is pointed at.

import { drawCell, drawRing, prepare } from "./cells.js";
import { element, setText } from "./dom.js";
import { layOut, numShown } from "./block_group.js";
import { bytes, count } from "./format.js";
import { hideTip, showTip } from "./tip.js";
import { blockLines } from "./words.js";

const MARGIN = 3; // for the ring around a block at the edge
const LEGEND = [
  ["used", "one request", { seats: [0], filled: 0.6 }],
  ["shared", "shared", { seats: [0, 1], filled: 1 }],
  ["cached", "cached, unused", {}],
  ["free", "free", {}],
];
const TITLES = { full: "Blocks", sliding: "Blocks of the sliding window", state: "Recurrent states, one slot a request" };

export class BlockMap {
  #pointed = null;
  #group = null;
  #most = 0;
  #wantsAll = false;

  constructor() {
    this.canvas = element("canvas");
    this.canvas.tabIndex = 0;
    this.canvas.setAttribute("role", "application");
    this.canvas.setAttribute("aria-roledescription", "block map");
    this.frame = element("div", "map", this.canvas);
    this.title = element("h3");
    this.legend = element("ul", "legend");
    this.numbers = LEGEND.map(([kind, words, look]) => this.#legendEntry(kind, words, look));
    this.root = element("figure", "group", this.title, this.frame, this.legend);
    new ResizeObserver(() => this.draw()).observe(this.frame);
    this.canvas.addEventListener("pointermove", (event) => this.#pointAt(this.#at(event), false));
    this.canvas.addEventListener("pointerdown", (event) => this.#pointAt(this.#at(event), false));
    this.canvas.addEventListener("pointerleave", (event) => event.pointerType === "mouse" && this.#pointAt(null, false));
    this.canvas.addEventListener("blur", () => this.#pointAt(null, false));
    this.canvas.addEventListener("keydown", (event) => this.#onKey(event));
  }

  /** Show a BlockGroup. */
  show(group, wantsAll) {
    this.#group = group;
    this.#most = Math.max(this.#most, group.end);
    this.#wantsAll = wantsAll;
    setText(this.title, this.#heading());
    Object.entries(group.counts).forEach(([kind, value]) => {
      this.root.dataset[kind] = value;
      setText(this.numbers.find((entry) => entry.kind === kind).number, count(value));
    });
    const { used, shared, cached, free } = group.counts;
    this.canvas.setAttribute("aria-label", `${TITLES[group.kind]}: ${used} held by one request, ${shared} shared, ` +
      `${cached} cached, ${free} free. Arrow keys go from block to block.`);
    this.draw();
    if (this.#pointed !== null) this.#tell(false);
  }

  draw() {
    const group = this.#group;
    const width = this.frame.clientWidth - 2 * MARGIN;
    if (!group || width < 20) return;
    const shown = this.numShown;
    const { pitch, size, columns, rows } = (this.layout = layOut(shown, width));
    Object.assign(this.canvas.dataset, { pitch, columns, shown });
    this.context = prepare(this.canvas, width + 2 * MARGIN, rows * pitch + 2 * MARGIN);
    for (let id = 0; id < shown; id += 1) drawCell(this.context, ...this.#place(id), size, group.look(id));
    if (this.#pointed !== null) drawRing(this.context, ...this.#place(this.#pointed), size);
  }

  /** Draw a block and those around it anew: without the ring. */
  #redrawAround(id) {
    const { pitch, size, columns } = this.layout;
    const [x, y] = this.#place(id);
    this.context.clearRect(x - pitch, y - pitch, 3 * pitch, 3 * pitch);
    for (const row of [id - columns, id, id + columns]) {
      for (let other = row - 1; other <= row + 1; other += 1) {
        const isNear = other >= 0 && other < this.numShown && Math.abs((other % columns) - (id % columns)) <= 1;
        if (isNear) drawCell(this.context, ...this.#place(other), size, this.#group.look(other));
      }
    }
  }

  get numShown() {
    return numShown(this.#group.numBlocks, this.#most, this.#wantsAll);
  }

  /** Draw the legend in the colours of the theme. */
  drawLegend() {
    for (const { canvas, look } of this.numbers) drawCell(prepare(canvas, 16, 16), 0, 0, 16, look);
  }

  #heading() {
    const group = this.#group;
    const tokens = group.kind === "state" ? "" : `${group.snapshot.kv_cache.block_size} tokens and `;
    const hidden = group.numBlocks - this.numShown;
    const rest = hidden ? `; ${count(hidden)} never used are not drawn` : "";
    return `${TITLES[group.kind]}: ${count(group.numBlocks)} of ${tokens}${bytes(group.blockBytes)} each${rest}`;
  }

  #legendEntry(kind, words, look) {
    const canvas = element("canvas");
    canvas.setAttribute("aria-hidden", "true");
    const number = element("b");
    this.legend.append(element("li", "", canvas, `${words} `, number));
    return { kind, canvas, number, look: { kind, ...look } };
  }

  /** Return the upper left corner of a block. */
  #place(id) {
    const { columns, pitch } = this.layout;
    return [MARGIN + (id % columns) * pitch, MARGIN + Math.floor(id / columns) * pitch];
  }

  /** Return the block under the pointer. */
  #at(event) {
    const { pitch, columns } = this.layout;
    const column = Math.floor((event.offsetX - MARGIN) / pitch);
    const id = Math.floor((event.offsetY - MARGIN) / pitch) * columns + column;
    return column >= 0 && column < columns && id >= 0 && id < this.numShown ? id : null;
  }

  #onKey(event) {
    const { columns } = this.layout;
    const steps = { ArrowRight: 1, ArrowLeft: -1, ArrowDown: columns, ArrowUp: -columns };
    const last = this.numShown - 1;
    let target = this.#pointed;
    if (event.key in steps) target = Math.min(last, Math.max(0, (target ?? -steps[event.key]) + steps[event.key]));
    else if (event.key === "Home") target = 0;
    else if (event.key === "End") target = last;
    else if (event.key === "Escape") target = null;
    else return;
    event.preventDefault();
    this.#pointAt(target, true);
  }

  #pointAt(id, isSpoken) {
    if (id === this.#pointed) return;
    if (this.#pointed !== null) this.#redrawAround(this.#pointed);
    this.#pointed = id;
    if (id === null) {
      hideTip();
      return;
    }
    drawRing(this.context, ...this.#place(id), this.layout.size);
    this.#tell(isSpoken);
  }

  #tell(isSpoken) {
    const [x, y] = this.#place(this.#pointed);
    const box = this.canvas.getBoundingClientRect();
    const target = { left: box.left + x, top: box.top + y, size: this.layout.size };
    showTip(target, blockLines(this.#group, this.#pointed), isSpoken);
  }
}
