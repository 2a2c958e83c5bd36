// Light, dark, or what the system wants; remembered in this browser.

import { byId } from "./dom.js";
import { forgetColours } from "./palette.js";

const PLACE = "octavo-theme";

/** Set up the switch; `onChange()` is called when colours have changed. */
export function setUpTheme(onChange) {
  const choice = byId("theme");
  const apply = () => {
    if (choice.value) document.documentElement.dataset.theme = choice.value;
    else delete document.documentElement.dataset.theme;
    forgetColours();
    onChange();
  };
  choice.value = localStorage.getItem(PLACE) ?? "";
  choice.addEventListener("change", () => {
    localStorage.setItem(PLACE, choice.value);
    apply();
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", apply);
  apply();
}
