"""What a model file takes and gives, read from the file itself. Layer: signature."""
