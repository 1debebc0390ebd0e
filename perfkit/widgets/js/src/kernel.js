// Is there still a kernel behind the widget? If not, it must not claim that something is running.

// "starting": someone else restarted it, and this is the new one
const ENDED = ["restarting", "autorestarting", "terminating", "dead", "starting"];

// Points come several times a second: after so long without a word a busy widget asks.
const ASK_EVERY_MS = 10000;
const LATE_ANSWER_MS = 1000;

/**
 * Calls `gone()` once, when the kernel was restarted or has ended. Returns a function that stops
 * watching.
 *
 * JupyterLab and Notebook report the kernel's status. Every front end with ipywidgets' own manager
 * marks a widget that has lost its kernel by an event and a class; `disconnected()` looks for it.
 * A kernel that somebody else restarted may report nothing: its first word comes before the server
 * listens to it. So while `busy()` a silent kernel is asked; one that has dealt with the question
 * and gave no answer does not know this widget.
 */
export function watchKernel(model, { disconnected, busy, gone }) {
  let over = false;
  let words = 0; // from the kernel since it was last asked
  let asked = false;
  const end = () => {
    if (over) return;
    over = true;
    stop();
    gone();
  };
  // the view's own listener sets the class in the same turn
  const looked = () => setTimeout(() => disconnected() && end());
  const status = model.widget_manager?.context?.sessionContext?.statusChanged;
  const changed = (_, now) => ENDED.includes(now) && end();
  const heard = () => {
    words += 1;
  };
  const ask = () => {
    const quiet = words === 0;
    words = 0;
    if (asked || !quiet || !busy()) return;
    asked = true;
    const dealtWith = () => {
      asked = false;
      if (words === 0) end();
    };
    const state = (reply) => {
      if (reply.content.execution_state === "idle") setTimeout(dealtWith, LATE_ANSWER_MS);
    };
    model.send({ type: "ping" }, { iopub: { status: state } });
  };
  const asking = setInterval(ask, ASK_EVERY_MS);
  const stop = () => {
    clearInterval(asking);
    model.off("msg:custom", heard);
    model.off("change:status", heard);
    model.off("comm_live_update", looked);
    status?.disconnect?.(changed);
  };
  model.on("msg:custom", heard);
  model.on("change:status", heard);
  model.on("comm_live_update", looked);
  status?.connect?.(changed);
  return stop;
}

/** Whether ipywidgets has marked the widget around this element as one without a kernel. */
export function isDisconnected(element) {
  const view = element.closest(".jupyter-widgets");
  return view?.classList.contains("jupyter-widgets-disconnected") ?? false;
}
