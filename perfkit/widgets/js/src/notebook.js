// The static picture after a page reload: JupyterLab forgets display ids with the page, so that an
// update from the kernel no longer finds its output.

/** Put a new mime bundle into the output whose HTML has this class; false if there is none. */
export function replaceOutput(model, name, bundle) {
  const cells = model.widget_manager?.context?.model?.cells;
  for (const cell of cells ?? []) {
    const outputs = cell.outputs;
    for (let i = 0; i < (outputs?.length ?? 0); i++) {
      const output = outputs.get(i);
      if (!String(output.data["text/html"] ?? "").includes(`class="${name}"`)) continue;
      output.setData({ data: { ...output.data, ...bundle } });
      return true;
    }
  }
  return false;
}
