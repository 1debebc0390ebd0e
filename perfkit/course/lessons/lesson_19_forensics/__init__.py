"""Lesson 19."""
