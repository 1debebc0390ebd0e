// The Lab's toggles: checkbox, menu, slider. The kernel says what can be chosen and what cannot.

import { freshId, h } from "./parts.js";

/**
 * One control for each setting; `choose(name, index)` is called when the user picks a value.
 * Returned: {element, show(choice)}.
 */
export function createControls(specs, choose) {
  const controls = specs.map((spec) => createControl(spec, (index) => choose(spec.name, index)));
  // one line of help for all: that of the control under the pointer or with the focus
  const idle = "Point at a setting to read what it does.";
  const help = h("p", { class: "pk-help", "aria-hidden": "true" }, idle);
  const explain = (spec) => () => {
    help.textContent = spec ? `${spec.label}: ${spec.help}` : idle;
  };
  controls.forEach(({ element: one }, i) => {
    if (!specs[i].help) return;
    for (const event of ["pointerenter", "focusin"]) one.addEventListener(event, explain(specs[i]));
    one.addEventListener("pointerleave", explain(null));
    one.addEventListener("focusout", explain(null));
  });
  const element = h(
    "fieldset",
    { class: "pk-controls" },
    h("legend", { class: "pk-hidden" }, "Settings"),
    h("div", { class: "pk-grid" }, ...controls.map((control) => control.element)),
    specs.some((spec) => spec.help) ? help : null,
  );
  return {
    element,
    show(choice) {
      controls.forEach((control, i) => control.show(choice[specs[i].name]));
    },
  };
}

function createControl(spec, choose) {
  const id = freshId("control");
  const hintId = `${id}-hint`;
  const usable = spec.values.filter((value) => !value.reason);
  const locked = usable.length < 2;
  const make = { checkbox, menu, slider }[spec.control];
  const { label, show } = make(spec, { id, hintId, locked, choose });
  // an option that cannot be taken says why in words, not only by being grey
  const reasons = new Map();
  for (const { label: text, reason } of spec.values)
    if (reason) reasons.set(reason, [...(reasons.get(reason) ?? []), text]);
  const hint = h(
    "div",
    { class: "pk-hint", id: hintId },
    spec.help ? h("div", { class: "pk-hidden" }, spec.help) : null,
    ...[...reasons].map(([reason, texts]) =>
      h(
        "div",
        { class: "pk-reason" },
        h("b", {}, `${texts.join(", ")} not available: `),
        reason.replace(/\s*\([^()]*\)$/, ""), // the whole reason is in the title
      ),
    ),
  );
  const element = h(
    "div",
    {
      class: `pk-control${locked ? " pk-locked" : ""}`,
      "data-setting": spec.name,
      title: [...reasons.keys()].join("\n") || null,
    },
    label,
    hint,
  );
  return { element, show };
}

function checkbox(spec, { id, hintId, locked, choose }) {
  // values are two: the first is "off"
  const input = h("input", {
    type: "checkbox",
    id,
    disabled: locked,
    "aria-describedby": hintId,
    onchange: () => choose(input.checked ? 1 : 0),
  });
  return {
    label: h("label", { class: "pk-check", for: id }, input, h("span", {}, spec.label)),
    show: (index) => {
      input.checked = index === 1;
    },
  };
}

function menu(spec, { id, hintId, locked, choose }) {
  const select = h(
    "select",
    {
      id,
      disabled: locked,
      "aria-describedby": hintId,
      onchange: () => choose(Number(select.value)),
    },
    ...spec.values.map(({ label, reason }, index) =>
      h(
        "option",
        { value: index, disabled: Boolean(reason), title: reason },
        reason ? `${label} (not available)` : label,
      ),
    ),
  );
  return {
    label: h("label", { class: "pk-row", for: id }, h("span", {}, spec.label), select),
    show: (index) => {
      select.value = String(index);
    },
  };
}

function slider(spec, { id, hintId, locked, choose }) {
  const output = h("output", { for: id });
  const nearest = (index) => {
    // a slider cannot grey out one stop: step over those that cannot be taken
    const order = spec.values.map((_, i) => i).sort((a, b) => Math.abs(a - index) - Math.abs(b - index));
    return order.find((i) => !spec.values[i].reason) ?? index;
  };
  let timer = 0;
  const name = (index) => {
    output.textContent = spec.values[index].label;
    input.setAttribute("aria-valuetext", spec.values[index].label);
  };
  const input = h("input", {
    type: "range",
    id,
    min: 0,
    max: spec.values.length - 1,
    step: 1,
    disabled: locked,
    "aria-describedby": hintId,
    oninput: () => name(nearest(Number(input.value))),
    onchange: () => {
      const index = nearest(Number(input.value));
      input.value = String(index);
      name(index);
      clearTimeout(timer);
      timer = setTimeout(() => choose(index), 350); // arrow keys come one stop at a time
    },
  });
  return {
    label: h("label", { class: "pk-slide", for: id }, h("span", {}, spec.label), output, input),
    show: (index) => {
      input.value = String(index);
      name(index);
    },
  };
}
