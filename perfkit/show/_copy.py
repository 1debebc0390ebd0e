"""The control that copies a report as Markdown.

It is made by a script, so that it is there only where it works: not on GitHub, not in a mail,
not in a notebook that is not trusted, not on a page of ``save("x.html")``. It needs no kernel.
What it copies is scrubbed (:mod:`perfkit.base.scrub`), whatever is on the screen.
"""

from __future__ import annotations

import json

from perfkit.base.scrub import scrub
from perfkit.show._as_markdown import as_markdown
from perfkit.show.document import Document

__all__ = ["with_copy"]

_SCRIPT = """<script>(function(markdown){
var here=document.currentScript,report=here&&here.parentNode.querySelector(".pk-report");
if(!report||report.querySelector(".pk-copy"))return;
var button=document.createElement("button");
button.type="button";button.className="pk-copy";button.textContent="Copy as Markdown";
button.title="For a pull request or a note; names of users and hosts and tokens are taken out";
button.setAttribute("aria-live","polite");
function say(words){button.textContent=words;
setTimeout(function(){button.textContent="Copy as Markdown"},2000)}
function byHand(){var area=document.createElement("textarea");area.value=markdown;
area.setAttribute("aria-label","the report as Markdown");area.className="pk-copy-area";
report.appendChild(area);area.focus();area.select();
var done=false;try{done=document.execCommand("copy")}catch(error){}
if(done){area.remove();button.focus();say("Copied")}else{say("Copy the text below")}}
button.addEventListener("click",function(){
if(navigator.clipboard&&navigator.clipboard.writeText){
navigator.clipboard.writeText(markdown).then(function(){say("Copied")},byHand)}else{byHand()}});
report.insertBefore(button,report.firstChild)})(%s)</script>"""


def with_copy(html: str, document: Document) -> str:
    """The report's HTML with the control."""
    markdown = json.dumps(as_markdown(scrub(document)))
    # within a script nothing may look like the end of it
    for mark in "<>&\u2028\u2029":
        markdown = markdown.replace(mark, f"\\u{ord(mark):04x}")
    return f"<div>{html}{_SCRIPT % markdown}</div>"
