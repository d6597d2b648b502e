import {
  Controller,
  ForbiddenException,
  Get,
  Header,
  Headers,
  HttpCode,
  type MessageEvent,
  Post,
  Sse,
} from '@nestjs/common';
import { map, type Observable } from 'rxjs';
import { Exercise } from './exercise.js';
import { HOME_HTML, HOME_POLICY } from './home-page.js';

@Controller()
export class HomeController {
  constructor(private readonly exercise: Exercise) {}

  @Get()
  @Header('Content-Type', 'text/html; charset=utf-8')
  @Header('Content-Security-Policy', HOME_POLICY)
  @Header('Cache-Control', 'no-store')
  page(): string {
    return HOME_HTML;
  }

  /** The last run, or the one that is under way, as it goes on. */
  @Sse('exercise/events')
  events(): Observable<MessageEvent> {
    return this.exercise.record.pipe(map((record) => ({ data: record })));
  }

  /** 202: it begins, unless it is under way. Only this page may ask for it: a page elsewhere cannot send the header. */
  @Post('exercise')
  @HttpCode(202)
  run(@Headers('x-exercise') header?: string): void {
    if (header === undefined) throw new ForbiddenException('The header x-exercise is missing.');
    void this.exercise.run();
  }
}
