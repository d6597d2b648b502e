type AbortListener = ((event: Event) => unknown) | { handleEvent(event: Event): unknown };
type ListenerMethod = (type: string, listener: AbortListener | null, options?: unknown) => void;

/**
 * An AbortController whose listeners cannot crash the process. Node reports an exception of an `abort` listener as an
 * uncaught exception; here it goes to `report`, since a lease may be lost at any time, far from the code that listens.
 */
export function containedController(report: (error: unknown) => void): AbortController {
  const controller = new AbortController();
  const { signal } = controller;
  const wrappers = new WeakMap<object, AbortListener>();

  const contain = (listener: AbortListener): AbortListener => {
    let wrapper = wrappers.get(listener);
    if (!wrapper) {
      wrapper = (event) => {
        try {
          const result =
            typeof listener === 'function' ? listener.call(signal, event) : listener.handleEvent(event);
          if (typeof (result as PromiseLike<unknown> | undefined)?.then === 'function')
            Promise.resolve(result).catch(report);
        } catch (error) {
          report(error);
        }
      };
      wrappers.set(listener, wrapper);
    }
    return wrapper;
  };

  const add = signal.addEventListener.bind(signal) as ListenerMethod;
  const remove = signal.removeEventListener.bind(signal) as ListenerMethod;
  const addContained: ListenerMethod = (type, listener, options) =>
    add(type, listener && contain(listener), options);
  const removeContained: ListenerMethod = (type, listener, options) =>
    remove(type, listener && (wrappers.get(listener) ?? listener), options);
  Object.defineProperty(signal, 'addEventListener', { value: addContained });
  Object.defineProperty(signal, 'removeEventListener', { value: removeContained });
  return controller;
}
