// The answers of Predict and Quiz as a group of radio buttons. No dependency, no bundle.
// `fixed`: question, answers [[letter, text]], button, sure [percent], unfolds, static (a class).
// `state`: turn, open, picked, marks {letter: [kind, words]}, status, stays. Python sets it; a choice
// goes to Python as a message, and the next turn is its answer.
// What stays in the notebook is an output below, which is hidden while this is shown.
// With `unfolds`, a settled choice opens the folded outputs below it in JupyterLab and Notebook 7.

const SILENT_MS = 3000; // after this long without an answer the reader is told why it may be

function element(tag, properties = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
    else if (value !== null && value !== false) made.setAttribute(name, value === true ? "" : value);
  }
  made.append(...children);
  return made;
}

// Opens each folded output below `el` once; what the reader folds afterwards stays folded. Cells
// that JupyterLab has not drawn yet are opened when they appear. Returns how to stop.
function unfoldBelow(el) {
  const book = el.closest(".jp-Notebook");
  const asking = el.closest(".jp-Cell");
  if (book === null || asking === null) return () => {};
  const seen = new WeakSet();
  const open = () => {
    for (const cell of book.querySelectorAll(".jp-CodeCell")) {
      const below = asking.compareDocumentPosition(cell) & Node.DOCUMENT_POSITION_FOLLOWING;
      const folded = cell.querySelector(".jp-OutputPlaceholder");
      // before it has drawn them, a cell has neither outputs nor what stands for folded ones
      if (!below || seen.has(cell) || !(folded ?? cell.querySelector(".jp-OutputArea-child"))) continue;
      seen.add(cell);
      folded?.click();
    }
  };
  const observer = new MutationObserver(open);
  observer.observe(book, { childList: true, subtree: true });
  open();
  return () => observer.disconnect();
}

// Puts what stays into its output. Python does so by a display id, which JupyterLab forgets with
// the page.
function keep(model) {
  const { stays } = model.get("state");
  const own = `class="${model.get("fixed").static}"`;
  for (const cell of model.widget_manager?.context?.model?.cells ?? []) {
    for (let i = 0; i < (cell.outputs?.length ?? 0); i++) {
      const output = cell.outputs.get(i);
      if (String(output.data["text/html"] ?? "").includes(own)) {
        output.setData({ data: { ...output.data, ...stays } });
      }
    }
  }
}

function initialize({ model }) {
  const answered = () => keep(model);
  model.on("change:state", answered);
  return () => model.off("change:state", answered);
}

function render({ model, el }) {
  const fixed = model.get("fixed");
  const name = `pk-choices-${Math.random().toString(36).slice(2)}`;
  let waiting = null; // the timer of a choice that Python has not answered yet
  let stopUnfolding = null;

  const status = element("p", { class: "pk-status", role: "status", tabindex: -1 });
  const marks = new Map();
  const radios = fixed.answers.map(([letter]) =>
    element("input", { type: "radio", name, value: letter, onchange: () => show() }),
  );
  const rows = fixed.answers.map(([letter, text], index) => {
    const mark = element("span", { class: "pk-mark" });
    marks.set(letter, mark);
    const words = element("span", { class: "pk-answer" }, element("b", {}, letter), ` ${text}`);
    words.append(mark);
    return element("label", { class: "pk-choice" }, radios[index], words);
  });
  const sure = element("select", {}, element("option", { value: "" }, "not said"));
  for (const percent of fixed.sure) {
    sure.append(element("option", { value: percent }, `${percent} %`));
  }
  const button = element("button", { type: "button", onclick: () => choose() }, fixed.button);
  const actions = element("div", { class: "pk-actions" }, button);
  if (fixed.sure.length) {
    actions.prepend(element("label", { class: "pk-sure" }, "How sure are you? ", sure));
  }
  const group = element(
    "fieldset",
    {},
    element("legend", {}, fixed.question),
    ...rows,
  );
  const box = element(
    "div",
    {
      class: "pk-report pk-choices",
      // Enter, Space and the arrow keys belong to these controls, not to the notebook
      "data-lm-suppress-shortcuts": "true",
      onkeydown: (event) => {
        event.stopPropagation();
        if (event.key === "Enter" && event.target.type === "radio") {
          event.preventDefault();
          choose();
        }
      },
    },
    element("style", {}, `.${fixed.static} { display: none; }`),
    group,
    actions,
    status,
  );

  const picked = () => radios.find((radio) => radio.checked)?.value ?? null;

  function choose() {
    if (waiting !== null || !model.get("state").open) return;
    if (picked() === null) {
      status.textContent = "Choose an answer first.";
      return;
    }
    box.dataset.state = "sent";
    waiting = setTimeout(() => {
      status.textContent =
        "No answer from the kernel yet. It is busy, or it was restarted: then run this cell again.";
    }, SILENT_MS);
    model.send({ letter: picked(), sure: sure.value === "" ? null : Number(sure.value) });
  }

  function show() {
    const state = model.get("state");
    if (!state.open && state.picked !== null) {
      for (const radio of radios) radio.checked = radio.value === state.picked;
    }
    for (const [index, radio] of radios.entries()) {
      radio.disabled = !state.open;
      const [kind, words] = state.marks[radio.value] ?? ["", ""];
      rows[index].dataset.mark = kind;
      marks.get(radio.value).textContent = words;
    }
    actions.hidden = !state.open;
    button.setAttribute("aria-disabled", String(picked() === null));
    if (waiting === null) {
      box.dataset.state = state.open ? "open" : "closed";
      box.dataset.picked = state.picked ?? "";
      status.textContent = state.status;
    }
  }

  function unfold() {
    if (!fixed.unfolds || model.get("state").open || stopUnfolding !== null) return;
    // render() runs before its element is in the page
    requestAnimationFrame(() => (stopUnfolding ??= unfoldBelow(el)));
  }

  function answered() {
    const mine = waiting !== null;
    const inside = box.contains(box.ownerDocument.activeElement) || box.matches(":focus-within");
    clearTimeout(waiting);
    waiting = null;
    show();
    unfold();
    // what had the focus is gone: whoever works by keyboard goes on from the answer
    if (mine && inside && !model.get("state").open) status.focus({ preventScroll: true });
  }

  model.on("change:state", answered);
  show();
  el.append(box);
  unfold();
  return () => {
    clearTimeout(waiting);
    stopUnfolding?.();
    model.off("change:state", answered);
  };
}

export default { initialize, render };
