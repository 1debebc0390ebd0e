// The Lab's settings as a row of chips. The kernel says what can be chosen.

import { freshId, h } from "./parts.js";

/**
 * One chip for each setting that is available here; the others are folded behind one mark.
 * Calls `choose(name, index)` when the reader picks a value.
 * Returns {element, show(choice), say(text), flush(), enable(on), focused(), focus(name)}.
 */
export function createControls(specs, choose) {
  const locked = (spec) => spec.values.filter((value) => !value.reason).length < 2;
  const usable = specs.filter((spec) => !locked(spec));
  const chips = usable.map((spec) => createChip(spec, (index) => choose(spec.name, index)));
  // one line of help for all chips: for the one under the pointer or with the focus
  let idle = "";
  const help = h("p", { class: "pk-help", "aria-hidden": "true" }, idle);
  const explain = (text) => () => {
    help.textContent = text;
  };
  chips.forEach(({ element: one }, i) => {
    if (!usable[i].help) return;
    const text = `${usable[i].label}: ${usable[i].help}`;
    for (const event of ["pointerenter", "focusin"]) one.addEventListener(event, explain(text));
    for (const event of ["pointerleave", "focusout"])
      one.addEventListener(event, () => explain(idle)());
  });
  const element = h(
    "fieldset",
    { class: "pk-controls" },
    h("legend", { class: "pk-hidden" }, "Settings"),
    h("div", { class: "pk-chips" }, ...chips.map((chip) => chip.element), unavailable(specs, locked)),
    help,
  );
  return {
    element,
    show(choice) {
      chips.forEach((chip, i) => chip.show(choice[usable[i].name]));
    },
    /** Set the text of the help line while it explains no setting. */
    say(text) {
      if (help.textContent === idle) help.textContent = text;
      idle = text;
    },
    /** Tell the kernel at once what it has not been told yet. */
    flush() {
      for (const chip of chips) chip.flush();
    },
    enable(on) {
      element.disabled = !on;
    },
    /** The name of the setting whose control has the focus, for `focus`. */
    focused() {
      const chip = chips.findIndex(({ element: one }) => one.contains(document.activeElement));
      return usable[chip]?.name;
    },
    focus(name) {
      const chip = chips[usable.findIndex((spec) => spec.name === name)];
      chip?.element.querySelector("input, select").focus({ preventScroll: true });
    },
  };
}

/** "2 not available here": unavailable settings and values, each with its reason. */
function unavailable(specs, locked) {
  const rows = specs.flatMap((spec) => {
    const reasons = new Map(); // reason → values
    for (const { label, reason } of spec.values)
      if (reason) reasons.set(reason, [...(reasons.get(reason) ?? []), label]);
    return [...reasons].map(([reason, values]) =>
      h(
        "li",
        { "data-setting": locked(spec) ? spec.name : null },
        h("b", {}, locked(spec) ? spec.name : `${spec.name} ${values.join(", ")}`),
        ` – ${reason}`,
      ),
    );
  });
  if (!rows.length) return null;
  return h(
    "details",
    { class: "pk-unavailable" },
    h("summary", {}, `${rows.length} not available here`),
    h("ul", {}, ...rows),
  );
}

function createChip(spec, choose) {
  const id = freshId("control");
  const helpId = `${id}-help`;
  const make = spec.control === "checkbox" ? toggle : menu;
  const { label, show, flush } = make(spec, { id, helpId, choose });
  const help = spec.help ? h("span", { class: "pk-hidden", id: helpId }, spec.help) : null;
  return { element: h("div", { class: "pk-chip-box", "data-setting": spec.name }, label, help), show, flush };
}

function toggle(spec, { id, helpId, choose }) {
  // two values: the first is "off"
  const input = h("input", {
    type: "checkbox",
    id,
    "aria-label": spec.label,
    "aria-describedby": spec.help ? helpId : null,
    onchange: () => choose(input.checked ? 1 : 0),
  });
  return {
    label: h("label", { class: "pk-chip pk-toggle", for: id }, input, h("span", {}, spec.name)),
    show: (index) => {
      input.checked = index === 1;
    },
    flush: () => {},
  };
}

function menu(spec, { id, helpId, choose }) {
  let timer = 0;
  let chosen = null; // by the reader, and not yet told to the kernel
  const flush = () => {
    clearTimeout(timer);
    if (chosen !== null) choose(chosen);
    chosen = null;
  };
  const select = h(
    "select",
    {
      id,
      "aria-label": spec.label,
      "aria-describedby": spec.help ? helpId : null,
      onchange: () => {
        chosen = Number(select.value);
        clearTimeout(timer); // arrow keys change one value at a time
        timer = setTimeout(flush, 350);
      },
    },
    ...spec.values.map(({ label, reason }, index) =>
      h(
        "option",
        { value: index, disabled: Boolean(reason), title: reason },
        label,
      ),
    ),
  );
  return {
    label: h("label", { class: "pk-chip", for: id }, h("span", {}, spec.name), select),
    show: (index) => {
      // what the kernel says meanwhile is about another setting
      if (chosen === null) select.value = String(index);
    },
    flush,
  };
}
