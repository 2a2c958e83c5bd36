// The blocks of one cache group, as numbers: what each is, whose, and how they are laid out.

const SIZES = [22, 20, 18, 16, 14, 12, 11, 10, 9, 8, 7, 6, 5]; // pixels of a block and the gap after it, the best first
const MOST_HEIGHT = 280;
const MOST_AT_ONCE = 1024;
const FEWEST = 256;

/** One group of a snapshot. `chosen` is the key of the request whose blocks alone are to stand out, or null. */
export class BlockGroup {
  constructor(snapshot, group, chosen) {
    this.snapshot = snapshot;
    this.kind = group.kind;
    this.numBlocks = group.num_blocks;
    this.blockBytes = group.block_bytes;
    this.used = new Map(group.used.map((block) => [block.block_id, block]));
    this.cached = new Set(group.cached);
    this.numShared = group.used.filter((block) => block.ref_cnt > 1).length;
    this.chosen = chosen;
  }

  get counts() {
    const [used, cached] = [this.used.size, this.cached.size];
    return { used: used - this.numShared, shared: this.numShared, cached, free: this.numBlocks - used - cached };
  }

  /** The end of the ids that have anything in them. */
  get end() {
    let last = -1;
    for (const ids of [this.used.keys(), this.cached]) for (const id of ids) if (id > last) last = id;
    return last + 1;
  }

  owners(id) {
    return (this.used.get(id)?.owners ?? []).map((index) => this.snapshot.running[index]);
  }

  /** Return how a block is drawn: see drawCell. */
  look(id) {
    const block = this.used.get(id);
    const isFaint = this.chosen !== null && !this.owners(id).some((request) => keyOf(request) === this.chosen);
    if (!block) return { kind: this.cached.has(id) ? "cached" : "free", isFaint };
    return {
      kind: block.ref_cnt > 1 ? "shared" : "used",
      seats: block.owners.map((index) => this.snapshot.running[index].seat ?? 0),
      filled: this.kind === "state" ? 1 : block.num_filled / this.snapshot.kv_cache.block_size,
      isFaint,
    };
  }
}

/** Return what tells one completion of a request from all others. */
export const keyOf = (request) => `${request.arrival}#${request.completion}`;

/** Return how many blocks to draw: all, if they are few; else those ever used, in steps, so that the map rarely jumps. */
export function numShown(numBlocks, end, wantsAll) {
  if (wantsAll || numBlocks <= MOST_AT_ONCE) return numBlocks;
  let shown = FEWEST;
  while (shown < end) shown *= 2;
  return Math.min(shown, numBlocks);
}

/** Return the layout of `count` blocks on `width` pixels: the largest squares whose rows are not too many. */
export function layOut(count, width) {
  for (const pitch of SIZES) {
    const columns = Math.max(1, Math.floor(width / pitch));
    const rows = Math.ceil(count / columns);
    if (rows * pitch <= MOST_HEIGHT || pitch === SIZES.at(-1)) {
      return { pitch, size: pitch - (pitch >= 9 ? 2 : 1), columns, rows };
    }
  }
}
