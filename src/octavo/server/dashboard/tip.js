// The small box beside what is pointed at.

import { byId, element, setText } from "./dom.js";
import { colour, seatColour } from "./palette.js";

const GAP = 10;

/** Show lines, [seat or null, text], beside a square of the window; `isSpoken` tells them to a screen reader too. */
export function showTip({ left, top, size }, lines, isSpoken) {
  const tip = byId("tip");
  tip.replaceChildren(...lines.map(([seat, text]) => tipLine(seat, text)));
  tip.hidden = false;
  const { width, height } = tip.getBoundingClientRect();
  const fitsRight = left + size + GAP + width < document.documentElement.clientWidth;
  const x = fitsRight ? left + size + GAP : Math.max(4, left - GAP - width);
  const y = Math.min(Math.max(4, top + size + GAP), window.innerHeight - height - 4);
  tip.style.transform = `translate(${Math.round(x)}px, ${Math.round(y)}px)`;
  if (isSpoken) setText(byId("spoken"), lines.map(([, text]) => text).join("; "));
}

export function hideTip() {
  byId("tip").hidden = true;
}

function tipLine(seat, text) {
  if (seat === null) return element("div", "", text);
  const swatch = element("span", "swatch");
  swatch.style.background = colour(seatColour(seat));
  return element("div", "", swatch, text);
}
