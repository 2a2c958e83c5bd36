// Elements made and filled without markup: text from a server is only ever text.

export const byId = (id) => document.getElementById(id);

/** Return a new element; children are elements, or text. */
export function element(name, className = "", ...children) {
  const made = document.createElement(name);
  if (className) made.className = className;
  made.append(...children);
  return made;
}

/** Return a new element of a drawing. */
export function shape(name, attributes = {}) {
  const made = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  return made;
}

/** Change an element's text, if it differs: nothing is laid out or announced again for the same words. */
export function setText(target, text) {
  if (target.textContent !== text) target.textContent = text;
}

/**
 * Make the children of `parent` those of `items`, in their order, and keep elements that are there already, with
 * their focus. `make(item)` returns a new one, `fill(element, item)` brings it up to date.
 */
export function showList(parent, items, keyOf, make, fill) {
  const old = new Map([...parent.children].map((child) => [child.dataset.key, child]));
  let place = parent.firstElementChild;
  for (const item of items) {
    const key = keyOf(item);
    const child = old.get(key) ?? make(item);
    child.dataset.key = key;
    old.delete(key);
    fill(child, item);
    if (child === place) place = place.nextElementSibling;
    else parent.insertBefore(child, place);
  }
  for (const gone of old.values()) gone.remove();
}
