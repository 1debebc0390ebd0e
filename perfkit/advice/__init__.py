"""Findings: the evidence, an upper bound of the gain, and what to change."""

from __future__ import annotations

from perfkit.advice.diagnose import Diagnosis
from perfkit.advice.findings import Finding
from perfkit.advice.profile import Profile, explain
from perfkit.advice.profiling import Profiling

__all__ = ["Diagnosis", "Finding", "Profile", "Profiling", "explain"]
