// What the engine's facts are called.

import { count, counted, shortId } from "./format.js";

/** Return why a request waits, as a sentence of few words. */
export function waitReason(reason, snapshot) {
  return {
    seats: `waits: all ${count(snapshot.max_num_seqs)} seats are taken`,
    blocks: "waits: too few blocks are free",
    token_budget: "waits: no room in the last step",
    turn: "waits: others are before it",
  }[reason] ?? `waits: ${reason}`;
}

/** Return what a request is doing. */
export function activity(request, snapshot) {
  if (request.waits_for !== null) {
    const again = request.num_preemptions ? "preempted; " : "";
    return again + waitReason(request.waits_for, snapshot);
  }
  return request.num_computed_tokens < request.num_prompt_tokens ? "prefill" : "decode";
}

/** Return the name of a request, with its number where it has several completions. */
export function nameOf(request) {
  return shortId(request.request_id) + (request.completion ? ` #${request.completion}` : "");
}

/** Return lines about one block: [seat or null, text]. */
export function blockLines(group, id) {
  const block = group.used.get(id);
  if (!block) {
    const kind = group.cached.has(id)
      ? "cached: nobody uses it, but a prompt that begins like this may"
      : "free: it holds nothing";
    return [[null, `Block ${count(id)}`], [null, kind]];
  }
  const use = block.ref_cnt > 1 ? `shared by ${block.ref_cnt} requests` : "used by one request";
  const slots = group.kind === "state"
    ? "the state of all its tokens"
    : `${block.num_filled} of ${counted(group.snapshot.kv_cache.block_size, "slot")} filled`;
  const owners = group.owners(id).slice(0, 8).map((request) => [request.seat, nameOf(request)]);
  const more = block.owners.length - owners.length;
  const lines = [[null, `Block ${count(id)}: ${use}`], [null, `ref count ${block.ref_cnt}, ${slots}`], ...owners];
  return more > 0 ? [...lines, [null, `and ${more} more`]] : lines;
}
