// How one block looks. What it is shows without colour too: free is empty, cached has a stroke, shared is framed and numbered.

import { colour, seatColour } from "./palette.js";

const MOST_STRIPES = 4;
const SMALLEST_WITH_NUMBER = 15;

/**
 * Draw a block into the square of `size` pixels at (x, y).
 * `look` has a `kind` (free, cached, used, shared), the `seats` of its owners, and how far it is `filled`, 0 to 1.
 */
export function drawCell(context, x, y, size, look) {
  context.globalAlpha = look.isFaint ? 0.16 : 1;
  if (look.kind === "free") drawFree(context, x, y, size);
  else if (look.kind === "cached") drawCached(context, x, y, size);
  else drawUsed(context, x, y, size, look);
  if (look.kind === "shared") drawFrame(context, x, y, size, look.seats.length);
  context.globalAlpha = 1;
}

function drawFree(context, x, y, size) {
  context.strokeStyle = colour("--cell-free");
  context.lineWidth = 1;
  context.strokeRect(x + 0.5, y + 0.5, size - 1, size - 1);
}

function drawCached(context, x, y, size) {
  context.fillStyle = colour("--cell-cached");
  context.fillRect(x, y, size, size);
  context.strokeStyle = colour("--cell-hatch");
  context.lineWidth = 1;
  context.beginPath();
  context.moveTo(x + 0.5, y + size - 0.5);
  context.lineTo(x + size - 0.5, y + 0.5);
  context.stroke();
}

/** Slots that hold a token are solid, from below; the empty ones above them are pale. */
function drawUsed(context, x, y, size, { seats, filled }) {
  const shown = seats.slice(0, MOST_STRIPES);
  const solid = filled > 0 ? Math.max(1, Math.round(size * filled)) : 0;
  const alpha = context.globalAlpha;
  shown.forEach((seat, index) => {
    const left = x + Math.round((size * index) / shown.length);
    const right = x + Math.round((size * (index + 1)) / shown.length);
    context.fillStyle = colour(seatColour(seat));
    context.globalAlpha = alpha * 0.28;
    context.fillRect(left, y, right - left, size - solid);
    context.globalAlpha = alpha;
    context.fillRect(left, y + size - solid, right - left, solid);
  });
}

function drawFrame(context, x, y, size, numOwners) {
  const width = size < 8 ? 1 : size < 14 ? 1.5 : 2;
  context.strokeStyle = colour("--ink");
  context.lineWidth = width;
  context.lineJoin = "miter";
  context.strokeRect(x + width / 2, y + width / 2, size - width, size - width);
  if (size < SMALLEST_WITH_NUMBER) return;
  const text = numOwners > 9 ? "9+" : String(numOwners);
  context.font = `650 ${Math.round(size * (text.length > 1 ? 0.46 : 0.6))}px system-ui, sans-serif`;
  context.textAlign = "center";
  context.textBaseline = "middle";
  context.lineWidth = 3;
  context.lineJoin = "round";
  context.strokeStyle = colour("--ink");
  context.strokeText(text, x + size / 2, y + size / 2 + 0.5);
  context.fillStyle = colour("--surface");
  context.fillText(text, x + size / 2, y + size / 2 + 0.5);
}

/** Draw the ring around the block that is looked at. */
export function drawRing(context, x, y, size) {
  context.strokeStyle = colour("--surface");
  context.lineWidth = 4;
  context.strokeRect(x - 1, y - 1, size + 2, size + 2);
  context.strokeStyle = colour("--accent");
  context.lineWidth = 2;
  context.strokeRect(x - 1, y - 1, size + 2, size + 2);
}

/** Make a canvas sharp: its pixels are the screen's. Returns its context, in CSS pixels. */
export function prepare(canvas, width, height) {
  const scale = window.devicePixelRatio || 1;
  const [across, down] = [Math.round(width * scale), Math.round(height * scale)];
  if (canvas.width !== across || canvas.height !== down) {
    [canvas.width, canvas.height] = [across, down];
    canvas.style.width = `${width}px`;
    canvas.style.height = `${height}px`;
  }
  const context = canvas.getContext("2d");
  context.setTransform(scale, 0, 0, scale, 0, 0);
  context.clearRect(0, 0, width, height);
  return context;
}
