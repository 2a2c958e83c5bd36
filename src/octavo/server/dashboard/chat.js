// A conversation with the model, by the same API that every client uses.

import { byId, element, setText } from "./dom.js";
import { count, counted, rate, seconds } from "./format.js";
import { UNAUTHORIZED, ask, events } from "./server.js";

const SHORTEST_SECONDS = 0.05; // of an answer whose speed says anything

export class Chat {
  #messages = [];
  #stop = null;

  /** The id of the request in progress, or null: which one of a snapshot is this chat's. */
  requestId = null;
  model = null;

  /** `onRefused(error)` is called when the server wants a key. */
  constructor(onRefused) {
    this.onRefused = onRefused;
    const text = byId("chat-text");
    byId("chat-form").addEventListener("submit", (event) => {
      event.preventDefault();
      this.#send(text.value.trim());
    });
    text.addEventListener("keydown", (event) => {
      if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
      event.preventDefault();
      byId("chat-form").requestSubmit();
    });
    byId("chat-stop").addEventListener("click", () => this.#stop?.abort());
    byId("chat-clear").addEventListener("click", () => this.#clear());
  }

  #clear() {
    this.#stop?.abort();
    this.#messages = [];
    byId("chat-log").replaceChildren();
    setText(byId("chat-status"), "");
    byId("chat-clear").disabled = true;
    byId("chat-text").focus();
  }

  async #send(text) {
    if (!text || this.#stop) return;
    byId("chat-text").value = "";
    this.#messages.push({ role: "user", content: text });
    const answer = new AnswerView(text);
    this.#stop = new AbortController();
    this.#showBusy(true);
    try {
      await this.#stream(answer);
      setText(byId("chat-status"), answer.summary());
    } catch (error) {
      if (error.status === UNAUTHORIZED) this.onRefused(error);
      const wasStopped = error.name === "AbortError";
      setText(byId("chat-status"), wasStopped ? `Stopped. ${answer.summary()}` : `No answer: ${error.message}`);
    }
    // A turn without any answer is taken back, so that the next one does not follow it.
    if (answer.content) this.#messages.push({ role: "assistant", content: answer.content });
    else this.#takeBack(text);
    this.#stop = this.requestId = null;
    answer.end();
    this.#showBusy(false);
  }

  #takeBack(text) {
    this.#messages.pop();
    byId("chat-text").value ||= text;
  }

  async #stream(answer) {
    this.requestId = `dashboard-${crypto.getRandomValues(new Uint32Array(1))[0].toString(36)}`;
    const body = {
      model: this.model ?? undefined,
      request_id: this.requestId,
      messages: this.#messages,
      max_tokens: byId("chat-max-tokens").valueAsNumber,
      temperature: byId("chat-temperature").valueAsNumber,
      stream: true,
      stream_options: { include_usage: true, continuous_usage_stats: true },
    };
    const response = await ask("v1/chat/completions", { body, signal: this.#stop.signal });
    for await (const event of events(response)) {
      if (event.error) throw new Error(event.error.message);
      answer.add(event);
      setText(byId("chat-status"), "");
    }
  }

  #showBusy(isBusy) {
    byId("chat-send").hidden = isBusy;
    byId("chat-stop").hidden = !isBusy;
    byId("chat-clear").disabled = false;
    byId("chat-log").setAttribute("aria-busy", isBusy);
    if (isBusy) setText(byId("chat-status"), "Waiting for the first token");
  }
}

/** One turn of the conversation on the page: what was asked, and the answer as it grows. */
class AnswerView {
  content = "";
  #began = performance.now();
  #firstAt = null;
  #lastAt = null;
  #usage = null;
  #madeAtFirst = 0; // tokens may come several at once

  constructor(question) {
    this.text = element("div", "text");
    this.meter = element("p", "meter");
    this.root = element("div", "turn answer", this.text, this.meter);
    const log = byId("chat-log");
    log.querySelector(".empty")?.remove();
    log.append(element("div", "turn question", question), this.root);
    log.scrollTop = log.scrollHeight;
  }

  add({ choices, usage }) {
    if (usage) this.#usage = usage;
    for (const { delta } of choices) {
      if (delta.content || delta.reasoning_content || delta.tool_calls) this.#stamp();
      if (delta.reasoning_content) this.#grow("details", "reasoning", "Reasoning", delta.reasoning_content);
      for (const call of delta.tool_calls ?? []) this.#addCall(call);
      if (delta.content) {
        this.content += delta.content;
        this.#follow(() => this.text.append(delta.content));
      }
    }
    setText(this.meter, this.summary());
  }

  /** Return tokens, speed and what the cache gave, in one line. */
  summary() {
    if (!this.#usage || this.#firstAt === null) return "";
    const { prompt_tokens: prompt, completion_tokens: made, prompt_tokens_details: details } = this.#usage;
    const decode = (this.#lastAt - this.#firstAt) / 1000;
    const speed = decode > SHORTEST_SECONDS ? `, ${rate((made - this.#madeAtFirst) / decode)} tokens/s` : "";
    const cached = `${count(details?.cached_tokens ?? 0)} of ${counted(prompt, "prompt token")} cached`;
    return `${counted(made, "token")}${speed}; first after ${seconds((this.#firstAt - this.#began) / 1000)}; ${cached}`;
  }

  end() {
    this.text.normalize();
    if (!this.content && !this.root.querySelector("details")) this.text.append(element("span", "empty", "No text came."));
  }

  #stamp() {
    this.#lastAt = performance.now();
    if (this.#firstAt !== null) return;
    this.#firstAt = this.#lastAt;
    this.#madeAtFirst = this.#usage?.completion_tokens ?? 0;
  }

  #addCall({ index = 0, function: called = {} }) {
    const words = (called.name ? `${called.name} ` : "") + (called.arguments ?? "");
    this.#grow("details", `call call-${index}`, "Tool call", words);
  }

  /** Add text to a part that is folded; make the part if it is the first. */
  #grow(tag, className, title, text) {
    const known = [...this.root.querySelectorAll(tag)].find((part) => part.className === className);
    const part = known ?? element(tag, className, element("summary", "", title), element("div", "text"));
    if (!known) this.root.insertBefore(part, this.text);
    this.#follow(() => part.lastElementChild.append(text));
  }

  /** Change the log, and go on to show its end if that was shown. */
  #follow(change) {
    const log = byId("chat-log");
    const isAtEnd = log.scrollHeight - log.scrollTop - log.clientHeight < 40;
    change();
    if (isAtEnd) log.scrollTop = log.scrollHeight;
  }
}
