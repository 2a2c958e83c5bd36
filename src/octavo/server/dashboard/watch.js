// Takes snapshots of the engine again and again: a few a second, fewer where they are dear, none while nobody looks.

import { UNAUTHORIZED, ask } from "./server.js";

const PERIOD_MS = 300;
const MOST_SHARE = 8; // the pause after a snapshot is at least so many times what the snapshot took
const PATIENCE_MS = 10_000;
const FOREVER_MS = 3_600_000;
const RETRY_MS = [500, 1000, 2000, 4000];

export class Watcher {
  #isPaused = false;
  #wake = () => {};
  #wantsOne = false;

  /** `onSnapshot(snapshot)` is called for each; `onTrouble(error)` when there is none. */
  constructor(onSnapshot, onTrouble) {
    this.onSnapshot = onSnapshot;
    this.onTrouble = onTrouble;
    document.addEventListener("visibilitychange", () => this.#wake());
  }

  get isPaused() {
    return this.#isPaused;
  }

  pause() {
    this.#isPaused = true;
  }

  resume() {
    this.#isPaused = false;
    this.#wake();
  }

  /** Take one snapshot at once, paused or not. */
  takeOne() {
    this.#wantsOne = true;
    this.#wake();
  }

  async run() {
    let numFailed = 0;
    for (;;) {
      while (!this.#wantsOne && (this.#isPaused || document.hidden)) await this.#sleep(FOREVER_MS);
      const began = performance.now();
      const { snapshot, error } = await this.#take();
      if (snapshot) this.onSnapshot(snapshot);
      if (error) this.onTrouble(error);
      numFailed = error ? numFailed + 1 : 0;
      if (!this.#wantsOne) await this.#sleep(pauseAfter(performance.now() - began, error, numFailed));
    }
  }

  /** Ask once. Returns neither where the picture was frozen meanwhile. */
  async #take() {
    const wasWanted = this.#wantsOne;
    this.#wantsOne = false;
    try {
      const response = await ask("octavo/snapshot", { signal: AbortSignal.timeout(PATIENCE_MS) });
      const snapshot = await response.json();
      return wasWanted || !this.#isPaused ? { snapshot } : {};
    } catch (error) {
      return { error };
    }
  }

  #sleep(milliseconds) {
    return new Promise((resolve) => {
      const timer = setTimeout(resolve, milliseconds);
      this.#wake = () => {
        clearTimeout(timer);
        resolve();
      };
    });
  }
}

function pauseAfter(took, error, numFailed) {
  if (error?.status === UNAUTHORIZED) return FOREVER_MS; // until there is a key
  return error ? RETRY_MS[Math.min(numFailed, RETRY_MS.length) - 1] : Math.max(PERIOD_MS, took * MOST_SHARE);
}
