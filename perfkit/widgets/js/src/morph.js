// Bring elements up to date without replacing them: a button that is replaced between press and
// release hears no click, and loses the focus.

/** Give `old` the attributes and children of `fresh`. What the reader has unfolded stays so. */
export function morph(old, fresh) {
  for (const { name } of [...old.attributes])
    if (name !== "open" && !fresh.hasAttribute(name)) old.removeAttribute(name);
  for (const { name, value } of fresh.attributes)
    if (old.getAttribute(name) !== value) old.setAttribute(name, value);
  let at = old.firstChild;
  for (const child of [...fresh.childNodes]) {
    if (at === null || !alike(at, child)) {
      old.insertBefore(child, at);
      continue;
    }
    if (at.nodeType === Node.ELEMENT_NODE) morph(at, child);
    else if (at.data !== child.data) at.data = child.data;
    at = at.nextSibling;
  }
  while (at !== null) {
    const gone = at;
    at = at.nextSibling;
    gone.remove();
  }
}

const alike = (one, other) =>
  one.nodeName === other.nodeName && one.dataset?.key === other.dataset?.key;
