"""Lesson 08."""
