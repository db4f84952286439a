"""Student models trained on released samples."""
