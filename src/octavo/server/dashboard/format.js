// Numbers as people read them.

const whole = new Intl.NumberFormat("en-US", { maximumFractionDigits: 0 });

/** Return 12345 as "12,345". */
export const count = (value) => whole.format(value);

/** Return "1 block" or "2 blocks". */
export const counted = (value, noun) => `${count(value)} ${noun}${value === 1 ? "" : "s"}`;

/** Return a rate or a mean: with one decimal where it is small and has any. */
export const rate = (value) => (value < 99.95 && !Number.isInteger(value) ? value.toFixed(1) : count(value));

/** Return 0.123 as "12.3 %". */
export function percent(share) {
  const value = share * 100;
  return `${value === 0 || value >= 99.95 ? value.toFixed(0) : value.toFixed(1)} %`;
}

/** Return a time in the unit that fits: "850 µs", "12.3 ms", "1.25 s". */
export function seconds(value) {
  if (value < 0.001) return `${(value * 1e6).toFixed(0)} µs`;
  if (value < 1) return `${(value * 1e3).toFixed(value < 0.1 ? 1 : 0)} ms`;
  return `${value.toFixed(value < 10 ? 2 : 1)} s`;
}

/** Return bytes as KiB, MiB or GiB. */
export function bytes(value) {
  const power = Math.min(3, Math.floor(Math.log2(Math.max(1, value)) / 10));
  const scaled = value / 1024 ** power;
  return `${power && scaled < 100 ? scaled.toFixed(1) : count(scaled)} ${["B", "KiB", "MiB", "GiB"][power]}`;
}

/** Return an id as its beginning and its end: servers give long ones. */
export const shortId = (id) => (id.length <= 22 ? id : `${id.slice(0, 13)}…${id.slice(-7)}`);
