// The colours of the theme, as a canvas needs them: resolved for light or dark.

export const NUM_SEAT_COLOURS = 12;

/** Return the name of the colour of a seat in the batch; seats take turns. */
export const seatColour = (seat) => `--seat-${seat % NUM_SEAT_COLOURS}`;

const probe = document.createElement("span");
probe.hidden = true;
let known = new Map();

/** Return a colour of the theme by its name in theme.css. */
export function colour(name) {
  if (!known.has(name)) {
    if (!probe.isConnected) document.body.append(probe);
    probe.style.color = `var(${name})`;
    known.set(name, getComputedStyle(probe).color);
  }
  return known.get(name);
}

/** Look the colours up anew: the theme has changed. */
export function forgetColours() {
  known = new Map();
}
