// Talks to the server that this page came from: its API key, its answers, its errors.

export const UNAUTHORIZED = 401;
const KEY_PLACE = "octavo-api-key";
let key = sessionStorage.getItem(KEY_PLACE) ?? "";

export const hasKey = () => key !== "";

/** Remember a key, in this tab only. */
export function useKey(given) {
  key = given;
  sessionStorage.setItem(KEY_PLACE, key);
}

/** An answer other than 2xx. */
export class RefusedError extends Error {
  constructor(status, message) {
    super(message);
    this.status = status;
  }
}

/** Ask for a path relative to the page; with a body, post it as JSON. Throws RefusedError, or what fetch throws. */
export async function ask(path, { body, signal } = {}) {
  const headers = key ? { authorization: `Bearer ${key}` } : {};
  if (body) headers["content-type"] = "application/json";
  const method = body ? "POST" : "GET";
  const response = await fetch(path, { method, headers, signal, body: body && JSON.stringify(body), cache: "no-store" });
  if (response.ok) return response;
  throw new RefusedError(response.status, await reasonOf(response));
}

async function reasonOf(response) {
  const text = await response.text();
  try {
    const { error } = JSON.parse(text);
    return error.message ?? String(error);
  } catch {
    return text.slice(0, 200) || response.statusText;
  }
}

/** Yield the JSON of each event of a stream, until it says that it is done. */
export async function* events(response) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) throw new Error("the stream broke off");
    const lines = (rest + value).split("\n");
    rest = lines.pop();
    for (const line of lines) {
      if (!line.startsWith("data: ")) continue;
      if (line === "data: [DONE]") return;
      yield JSON.parse(line.slice(6));
    }
  }
}
