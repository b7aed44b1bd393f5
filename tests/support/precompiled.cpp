// The target of GoogleTest's precompiled header needs a source.
