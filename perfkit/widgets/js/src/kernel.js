// Is there still a kernel behind the widget? If not, it must not claim that something is running.

// "starting": someone else restarted it, and this is the new one
const ENDED = ["restarting", "autorestarting", "terminating", "dead", "starting"];

/**
 * Calls `gone()` once, when the kernel was restarted or has ended. Returns a function that stops
 * watching.
 *
 * JupyterLab and Notebook report the kernel's status. Every front end with ipywidgets' own manager
 * marks a widget that has lost its kernel by an event and a class; `disconnected()` looks for it.
 */
export function watchKernel(model, disconnected, gone) {
  let over = false;
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
  const stop = () => {
    model.off("comm_live_update", looked);
    status?.disconnect?.(changed);
  };
  model.on("comm_live_update", looked);
  status?.connect?.(changed);
  return stop;
}
