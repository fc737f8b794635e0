"""Explanations of single predictions: shares of columns, neighbours, edges and the simple method."""
