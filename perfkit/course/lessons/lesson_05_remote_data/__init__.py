"""Lesson 05."""
