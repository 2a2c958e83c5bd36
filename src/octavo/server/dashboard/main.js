// The dashboard: takes snapshots of the engine and shows them. Begin to read here.

import { BlockGroup } from "./block_group.js";
import { BlockMap } from "./block_map.js";
import { Charts } from "./charts.js";
import { Chat } from "./chat.js";
import { byId, setText } from "./dom.js";
import { showFigures } from "./figures.js";
import { RequestList } from "./requests.js";
import { UNAUTHORIZED, ask, hasKey, useKey } from "./server.js";
import { setUpTheme } from "./theme.js";
import { Watcher } from "./watch.js";

const SCHEMA = 1;

const maps = [];
let shown = null;
let isKnown = false;

const watcher = new Watcher(show, showTrouble);
const requests = new RequestList(drawRequests);
const charts = new Charts();
const chat = new Chat(showTrouble);

function show(snapshot) {
  if (snapshot.schema !== SCHEMA) {
    showTrouble(new Error(`The server tells of schema ${snapshot.schema}, this page reads ${SCHEMA}: load it again.`));
    return;
  }
  shown = snapshot;
  byId("trouble").hidden = byId("key-form").hidden = true;
  showWatching();
  showFigures(snapshot);
  charts.show(snapshot);
  drawRequests();
  document.body.dataset.step = snapshot.num_steps;
  if (!isKnown) learnModel();
}

/** Show who runs and what they hold; again when another request is chosen. */
function drawRequests() {
  requests.show(shown, chat.requestId);
  drawBlocks();
}

function drawBlocks() {
  if (!shown) return;
  while (maps.length > shown.cache_groups.length) maps.pop().root.remove(); // the server serves another model now
  shown.cache_groups.forEach((group, index) => {
    if (!maps[index]) addMap(index);
    maps[index].show(new BlockGroup(shown, group, requests.chosen), byId("all-blocks").checked);
  });
  byId("all-blocks-label").hidden = !byId("all-blocks").checked &&
    maps.every((map, index) => map.numShown === shown.cache_groups[index].num_blocks);
}

function addMap(index) {
  maps[index] = new BlockMap();
  byId("block-maps").append(maps[index].root);
  maps[index].drawLegend();
}

function showState(state, words) {
  byId("state").dataset.state = state;
  setText(byId("state"), words);
}

const timeShown = () => new Date(shown.taken_at * 1000).toLocaleTimeString();

function showWatching() {
  if (watcher.isPaused) showState("paused", shown ? `paused at ${timeShown()}` : "paused");
  else showState("live", "live");
}

function showTrouble(error) {
  isKnown = false;
  const needsKey = error.status === UNAUTHORIZED;
  byId("key-form").hidden = !needsKey;
  byId("trouble").hidden = needsKey;
  if (needsKey) {
    showState("gone", "locked");
    setText(byId("key-wrong"), hasKey() ? "The server refused this key." : "");
    return;
  }
  const since = shown ? ` The picture is of ${timeShown()}.` : "";
  setText(byId("trouble"), `${troubleWords(error)}${since} Trying again.`);
  showState("gone", "no answer");
}

function troubleWords(error) {
  if (error.status) return `The server answered ${error.status}: ${error.message}`;
  const isGone = error instanceof TypeError || error.name === "TimeoutError"; // what fetch throws
  return isGone ? "The server does not answer." : error.message;
}

/** Learn what is served, once; the page works without. */
async function learnModel() {
  isKnown = true;
  try {
    const { data } = await (await ask("v1/models")).json();
    chat.model = data[0].id;
    setText(byId("model"), data[0].id);
    document.title = `${data[0].id} – Octavo`;
  } catch {
    isKnown = false;
  }
}

byId("pause").addEventListener("click", () => {
  if (watcher.isPaused) watcher.resume();
  else watcher.pause();
  byId("pause").setAttribute("aria-pressed", watcher.isPaused);
  setText(byId("pause"), watcher.isPaused ? "Resume" : "Pause");
  byId("one").hidden = !watcher.isPaused;
  showWatching();
});
byId("one").addEventListener("click", () => watcher.takeOne());
byId("all-blocks").addEventListener("change", drawBlocks);
byId("key-form").addEventListener("submit", (event) => {
  event.preventDefault();
  useKey(byId("key").value);
  byId("key").value = "";
  setText(byId("key-wrong"), "");
  watcher.takeOne();
});

setUpTheme(() => {
  for (const map of maps) map.drawLegend();
  drawBlocks();
});
watcher.run();
