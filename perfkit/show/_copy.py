"""The report as Markdown, to be copied out of a notebook.

It is a fold with the text in it, which can be selected wherever HTML is shown: on GitHub, in a
stored notebook, in one that is not trusted. Where scripts run, a button in the corner stands in
for it, and needs no kernel. The text is scrubbed (:mod:`perfkit.base.scrub`), whatever is on the
screen.
"""

from __future__ import annotations

from perfkit.base.scrub import scrub
from perfkit.show._as_html import as_html
from perfkit.show._as_markdown import as_markdown
from perfkit.show.document import Document

# More than this, in characters, would weigh on the stored notebook.
_MOST = 8_000

_SCRIPT = """<script>(function(){
var here=document.currentScript,fold=here&&here.parentNode.querySelector(".pk-markdown");
if(!fold||fold.hidden)return;
var report=fold.parentNode,text=fold.querySelector("pre"),button=document.createElement("button");
button.type="button";button.className="pk-copy";button.textContent="Copy as Markdown";
button.title="For a pull request or a note, without tokens and names of users and hosts";
button.setAttribute("aria-live","polite");
function say(words){button.textContent=words;
setTimeout(function(){button.textContent="Copy as Markdown"},2000)}
function byHand(){fold.hidden=false;fold.open=true;
var range=document.createRange(),chosen=getSelection();
range.selectNodeContents(text);chosen.removeAllRanges();chosen.addRange(range);
var done=false;try{done=document.execCommand("copy")}catch(error){}
fold.hidden=done;say(done?"Copied":"Copy the text below")}
button.addEventListener("click",function(){
if(navigator.clipboard&&navigator.clipboard.writeText){
navigator.clipboard.writeText(text.textContent).then(function(){say("Copied")},byHand)}
else{byHand()}});
report.insertBefore(button,report.firstChild);fold.hidden=true})()</script>"""


def with_copy(document: Document) -> str:
    """The document as HTML with the control; a lone sentence needs none."""
    if not _is_report(document):
        return as_html(document)
    markdown = as_markdown(scrub(document))
    if len(markdown) > _MOST:
        return as_html(document, "Too long to be kept here: .to_markdown() and .save() give it.")
    return f"<div>{as_html(document, markdown)}{_SCRIPT}</div>"


def _is_report(of: Document) -> bool:
    tables = any(table.rows for table in of.tables)
    drawn = of.bars or of.pictures or of.draw is not None
    return bool(tables or drawn or of.findings or of.folds or of.sections)
