"""The rules: functions from a case to findings, independent of each other; one topic a file."""
